import com.rabbitmq.client.*;
import java.nio.charset.StandardCharsets;
import java.sql.*;

/**
 * Claims a message, does its work and commits, then acknowledges.
 *
 *     AMQP_URL=amqp://... JDBC_URL=jdbc:postgresql://... java Consumer QUEUE
 *
 * The queue's name serves as the consumer's name. On an error that is not the
 * message's fault the process ends, which returns what it has not acknowledged
 * to the queue; a supervisor starts it again.
 */
public class Consumer {
    static java.sql.Connection database;
    static String queue;

    public static void main(String[] arguments) throws Exception {
        queue = arguments[0];
        database = DriverManager.getConnection(System.getenv("JDBC_URL"));
        // JDBC's default makes each statement a transaction of its own: the
        // claim would be committed before the work is done.
        database.setAutoCommit(false);

        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("AMQP_URL"));
        Channel broker = factory.newConnection().createChannel();
        broker.basicQos(20);
        broker.basicConsume(queue, false, new DefaultConsumer(broker) {
            @Override
            public void handleDelivery(String tag, Envelope envelope,
                    AMQP.BasicProperties properties, byte[] body) {
                try {
                    String outcome = process(properties.getMessageId(),
                            new String(body, StandardCharsets.UTF_8));
                    long delivery = envelope.getDeliveryTag();
                    switch (outcome) {
                        case "claimed", "duplicate" -> broker.basicAck(delivery, false);
                        case "mismatch", "poison" -> broker.basicReject(delivery, false);
                        default -> broker.basicReject(delivery, true);
                    }
                } catch (Throwable error) {
                    // thrown on, it would only close the channel
                    System.err.println(error);
                    Runtime.getRuntime().halt(1);
                }
            }
        });
    }

    static String process(String messageId, String body) throws SQLException {
        try (PreparedStatement claim = database.prepareStatement(
                    "SELECT idem_claim(?, ?, idem_fingerprint(?::jsonb))");
                PreparedStatement work = database.prepareStatement(
                    "INSERT INTO reservation"
                    + " SELECT ?, (d->>'order_id')::int, d->>'title', (d->>'copies')::int"
                    + " FROM (SELECT ?::jsonb->'data') AS message (d)")) {
            claim.setString(1, messageId);
            claim.setString(2, queue);
            claim.setString(3, body);
            ResultSet result = claim.executeQuery();
            result.next();
            String outcome = result.getString(1);
            if (outcome.equals("claimed")) {
                work.setString(1, queue);
                work.setString(2, body);
                work.executeUpdate();
            }
            database.commit();
            return outcome;
        } catch (SQLException error) {
            // Class 22 and 23: wrong data, which would fail again each time.
            String state = String.valueOf(error.getSQLState());
            if (!state.startsWith("22") && !state.startsWith("23")) {
                throw error;
            }
            database.rollback();
            System.err.println(messageId + " " + error.getMessage());
            return "poison";
        }
    }
}
