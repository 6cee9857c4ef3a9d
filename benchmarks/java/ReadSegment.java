import java.io.File;
import java.lang.management.ManagementFactory;
import org.apache.kafka.common.record.FileRecords;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;

/** Kafka's own loop over a segment, several times over: prints what it did, records, bytes and CPU nanoseconds of each pass. */
public final class ReadSegment {
    public static void main(String[] args) throws Exception {
        File file = new File(args[0]);
        String what = args[1];
        int passes = Integer.parseInt(args[2]);
        var clock = ManagementFactory.getThreadMXBean();
        for (int pass = 0; pass < passes; pass++) {
            long before = clock.getCurrentThreadCpuTime();
            long records = 0, bytes = 0, sizes = 0;
            try (FileRecords log = FileRecords.open(file, false)) {
                for (RecordBatch batch : log.batches()) {
                    batch.ensureValid();
                    bytes += batch.sizeInBytes();
                    if (what.equals("headers")) {
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
            System.out.println(what + " " + records + " " + bytes + " " + (clock.getCurrentThreadCpuTime() - before) + " " + sizes);
        }
    }
}
