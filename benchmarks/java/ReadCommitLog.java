import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** RocketMQ's own decoder over a commit log in memory, a pass for each line of the input: prints messages, and CPU nanoseconds of the thread. */
public final class ReadCommitLog {
    static final int MAGIC = -626843481;
    static long sum;

    public static void main(String[] args) throws Exception {
        ByteBuffer whole;
        try (FileChannel file = FileChannel.open(Path.of(args[0]))) {
            whole = ByteBuffer.allocate((int) file.size());
            while (whole.hasRemaining() && file.read(whole) > 0) {
            }
        }
        var clock = ManagementFactory.getThreadMXBean();
        var input = new BufferedReader(new InputStreamReader(System.in));
        while (input.readLine() != null) {
            whole.position(0);
            long messages = 0, before = clock.getCurrentThreadCpuTime();
            while (whole.remaining() > 8 && whole.getInt(whole.position() + 4) == MAGIC) {
                int at = whole.position(), size = whole.getInt(at);
                MessageExt message = MessageDecoder.decode(whole, true, true, false, false, true);
                sum += message.getBody().length + message.getProperties().size();
                whole.position(at + size);
                messages++;
            }
            System.out.println("pass " + messages + " " + (clock.getCurrentThreadCpuTime() - before));
        }
    }
}
