import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;

/** An application of the streams protocol that reads topics, until its input ends: address, name, directory of its state, topics. */
public class Streams {
    public static void main(String[] given) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given[0]);
        settings.put("application.id", given[1]);
        settings.put("client.id", "reader");
        settings.put("group.protocol", "streams");
        settings.put("commit.interval.ms", "100");
        settings.put("auto.offset.reset", "earliest");
        settings.put("state.dir", given[2]);
        StreamsBuilder builder = new StreamsBuilder();
        for (int at = 3; at < given.length; at++) {
            builder.stream(given[at], Consumed.with(Serdes.ByteArray(), Serdes.ByteArray())).foreach((key, value) -> {});
        }
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings)) {
            streams.setStateListener((now, before) -> System.out.println(now));
            streams.start();
            System.in.read();
        }
    }
}
