// A peer of benchmarks/live.py: replays a kafka-replay file of version 2 with the client library of the original tool, tuned, in one
// process: 10,000 records at a time as its later releases do, but divided so that each partition's batch is full and none waits for more.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"log"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

const header, batch, partitions = 20, 10000, 4

func main() {
	file, err := os.Open(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	input := bufio.NewReaderSize(file, 1<<20)
	if _, err := input.Discard(header); err != nil {
		log.Fatal(err)
	}
	writer := &kafka.Writer{
		Addr: kafka.TCP(os.Args[1]), Topic: os.Args[2], BatchSize: batch / partitions, BatchBytes: 50 << 20, BatchTimeout: 500 * time.Millisecond,
		WriteTimeout: 30 * time.Second, RequiredAcks: kafka.RequireAll, Compression: kafka.Snappy, Balancer: &kafka.RoundRobin{},
	}
	messages := make([]kafka.Message, 0, batch)
	for {
		var head [24]byte
		_, err := io.ReadFull(input, head[:])
		if err == nil {
			keySize := int(binary.BigEndian.Uint64(head[8:]))
			data := make([]byte, keySize+int(binary.BigEndian.Uint64(head[16:])))
			if _, err := io.ReadFull(input, data); err != nil {
				log.Fatal(err)
			}
			at := time.Unix(int64(binary.BigEndian.Uint64(head[:])), 0)
			messages = append(messages, kafka.Message{Key: data[:keySize], Value: data[keySize:], Time: at})
		} else if err != io.EOF {
			log.Fatal(err)
		}
		if len(messages) == batch || (err == io.EOF && len(messages) > 0) {
			if err := writer.WriteMessages(context.Background(), messages...); err != nil {
				log.Fatal(err)
			}
			messages = messages[:0]
		}
		if err == io.EOF {
			break
		}
	}
	if err := writer.Close(); err != nil {
		log.Fatal(err)
	}
}
