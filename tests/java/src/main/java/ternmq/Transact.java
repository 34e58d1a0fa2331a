package ternmq;

import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages in transactions, as each further line of standard input orders, and answers checks.
 *
 * <p>Options: {@code namesrv}, {@code group}, {@code check} (how it answers checks of transactions whose local part ended
 * with UNKNOW: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW), {@code trace} (to RocketMQ's trace topic). An order: {@code topic}, {@code count}, {@code body} (message <i>i</i> carries {@code body-i}), {@code local}
 * (how the local transaction ends), {@code properties}, {@code delayLevel}. Each message answers with an event
 * {@code result} or {@code error}, each order ends with {@code sent}; a check is an event {@code check}.
 */
final class Transact {
    private static final String LOCAL = "local";

    private Transact() {
    }

    static void run(Options options, BufferedReader input) throws Exception {
        LocalTransactionState checked = LocalTransactionState.valueOf(options.text("check", "UNKNOW"));
        var producer = new TransactionMQProducer(
                null, options.text("group", "ternmq-peer"), null, options.flag("trace", false), null);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(options.text("instance", "peer"));
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object local) {
                return (LocalTransactionState) local;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("topic", message.getTopic());
                line.put("queueId", message.getQueueId());
                line.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
                line.put("transactionId", message.getTransactionId());
                line.put("properties", message.getProperties());
                Events.emit("check", line);
                // A check may overtake the end of its transaction; then it must not say something else.
                LocalTransactionState local = LocalTransactionState.valueOf(message.getProperty(LOCAL));
                return local == LocalTransactionState.UNKNOW ? checked : local;
            }
        });
        producer.start();
        try {
            // So that a broker knows this producer before it has sent anything.
            if (options.has("topic")) {
                producer.fetchPublishMessageQueues(options.text("topic"));
            }
            Events.emit("ready", Map.of());
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                carryOut(producer, Options.parse(line));
            }
        } finally {
            producer.shutdown();
        }
    }

    private static void carryOut(TransactionMQProducer producer, Options order) {
        int count = order.number("count", 1);
        int failed = 0;
        var local = LocalTransactionState.valueOf(order.text("local", "COMMIT_MESSAGE"));
        for (int index = 0; index < count; index++) {
            byte[] body = (order.text("body", "body") + "-" + index).getBytes(StandardCharsets.UTF_8);
            var message = new Message(order.text("topic"), body);
            if (order.has("delayLevel")) {
                message.setDelayTimeLevel(order.number("delayLevel", 0));
            }
            order.pairs("properties").forEach(message::putUserProperty);
            message.putUserProperty(LOCAL, local.name());
            try {
                TransactionSendResult sent = producer.sendMessageInTransaction(message, local);
                Map<String, Object> line = new LinkedHashMap<>();
                line.put("index", index);
                line.put("status", sent.getSendStatus().name());
                line.put("local", sent.getLocalTransactionState().name());
                line.put("msgId", sent.getMsgId());
                line.put("transactionId", sent.getTransactionId());
                line.put("queueId", sent.getMessageQueue().getQueueId());
                Events.emit("result", line);
            } catch (Exception failure) {
                failed++;
                Events.failure("error", failure, Map.of("index", index));
            }
        }
        Events.emit("sent", Map.of("count", count, "failed", failed));
    }
}
