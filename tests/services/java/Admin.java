import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeSet;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;

/** Kafka's own AdminClient behind a pipe, for what the Python client cannot ask: a line of tab-separated words in, lines up to a dot out. */
public class Admin {
    static final String DEFAULT = "<default>";

    public static void main(String[] arguments) throws Exception {
        try (AdminClient admin = AdminClient.create(Map.of("bootstrap.servers", arguments[0]))) {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            System.out.println(".");
            for (String line; (line = input.readLine()) != null; ) {
                try {
                    answer(admin, line.split("\t"));
                } catch (Exception error) {
                    Throwable cause = error.getCause() == null ? error : error.getCause();
                    System.out.println("error\t" + cause.getClass().getSimpleName() + "\t" + cause.getMessage());
                }
                System.out.println(".");
            }
        }
    }

    static void answer(AdminClient admin, String[] words) throws Exception {
        switch (words[0]) {
            case "quota": // entity, key, value or - to remove it
                ClientQuotaAlteration.Op change =
                        new ClientQuotaAlteration.Op(words[2], words[3].equals("-") ? null : Double.valueOf(words[3]));
                admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity(words[1]), List.of(change)))).all().get();
                break;
            case "reassign": // topic, partition, brokers or - to cancel
                Optional<NewPartitionReassignment> target = Optional.empty();
                if (!words[3].equals("-")) {
                    List<Integer> brokers = new ArrayList<>();
                    for (String number : words[3].split(",")) brokers.add(Integer.valueOf(number));
                    target = Optional.of(new NewPartitionReassignment(brokers));
                }
                TopicPartition partition = new TopicPartition(words[1], Integer.parseInt(words[2]));
                admin.alterPartitionReassignments(Map.of(partition, target)).all().get();
                break;
            case "quotas":
                admin.describeClientQuotas(ClientQuotaFilter.all()).entities().get().forEach((entity, quotas) -> {
                    List<String> names = new ArrayList<>();
                    for (String kind : new TreeSet<>(entity.entries().keySet())) {
                        String name = entity.entries().get(kind);
                        names.add(kind + "=" + (name == null ? DEFAULT : name));
                    }
                    quotas.forEach((key, value) -> System.out.println(String.join(";", names) + "\t" + key + "\t" + value));
                });
                break;
            case "reassignments":
                admin.listPartitionReassignments().reassignments().get().forEach((at, one) -> System.out.println(
                        at.topic() + "\t" + at.partition() + "\t" + one.replicas() + "\t" + one.addingReplicas() + "\t" + one.removingReplicas()));
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    static ClientQuotaEntity entity(String text) {
        Map<String, String> entries = new HashMap<>();
        for (String part : text.split(";")) {
            String[] pair = part.split("=", 2);
            entries.put(pair[0], pair[1].equals(DEFAULT) ? null : pair[1]);
        }
        return new ClientQuotaEntity(entries);
    }
}
