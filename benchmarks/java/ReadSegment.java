import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/** Kafka's own loop over a segment, a pass for each line of the input: prints records, and CPU nanoseconds of the thread. */
public final class ReadSegment {
    static long sizes;

    public static void main(String[] args) throws Exception {
        File file = new File(args[0]);
        boolean onlyHeaders = args[1].equals("headers");
        var clock = ManagementFactory.getThreadMXBean();
        var input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            long before = clock.getCurrentThreadCpuTime();
            long records = 0;
            try (FileRecords log = FileRecords.open(file, false)) {
                for (RecordBatch batch : log.batches()) {
                    batch.ensureValid();
                    if (onlyHeaders) {
                        records += batch.countOrNull() == null ? 1 : batch.countOrNull();
                        continue;
                    }
                    try (CloseableIterator<Record> inside = batch.streamingIterator(BufferSupplier.create())) {
                        while (inside.hasNext()) {
                            Record record = inside.next();
                            sizes += record.keySize() + record.valueSize();
                            records++;
                        }
                    }
                }
            }
            System.out.println("pass " + records + " " + (clock.getCurrentThreadCpuTime() - before));
        }
    }
}
