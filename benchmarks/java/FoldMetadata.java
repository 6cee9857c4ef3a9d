import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.raft.internals.RecordsIterator;

/**
 * Kafka's own fold of a metadata log to an image, a pass for each line of the input: prints records, and CPU nanoseconds of the thread.
 * Batches are read as the Raft client reads them, 8 MiB at most at a time; the image is made after each MiB of log, about as the loader does.
 */
public final class FoldMetadata {
    static final int ROOM = 8 << 20, STEP = 1 << 20;
    static int topics;

    public static void main(String[] args) throws Exception {
        File file = new File(args[0]);
        var clock = ManagementFactory.getThreadMXBean();
        var input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            long before = clock.getCurrentThreadCpuTime();
            long records = 0, pending = 0;
            MetadataImage image = MetadataImage.EMPTY;
            MetadataDelta delta = new MetadataDelta.Builder().setImage(image).build();
            try (FileRecords log = FileRecords.open(file, false);
                    var batches = new RecordsIterator<>(
                        log, MetadataRecordSerde.INSTANCE, BufferSupplier.create(), ROOM, true, new LogContext())) {
                while (batches.hasNext()) {
                    var batch = batches.next();
                    for (var record : batch.records()) {
                        delta.replay(record.message());
                        records++;
                    }
                    pending += batch.sizeInBytes();
                    if (pending >= STEP) {
                        image = delta.apply(new MetadataProvenance(batch.lastOffset(), batch.epoch(), batch.appendTimestamp(), true));
                        delta = new MetadataDelta.Builder().setImage(image).build();
                        pending = 0;
                    }
                }
            }
            image = delta.apply(MetadataProvenance.EMPTY);
            topics = image.topics().topicsByName().size();
            System.out.println("pass " + records + " " + (clock.getCurrentThreadCpuTime() - before));
        }
    }
}
