package ternmq;

import java.io.BufferedReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends what each further line of standard input orders, with one producer.
 *
 * <p>Options: {@code namesrv}, {@code group}, {@code instance}, {@code timeoutMs}, {@code pollMs} (how often routes are asked for), {@code compressOver},
 * {@code maxBodyBytes}, {@code accessKey} and {@code secretKey} (sign requests), {@code vip}, {@code latencyFault}, {@code trace} (to RocketMQ's trace topic). An order: {@code topic}, {@code mode} (sync, async, oneway,
 * batch, ordered, hashed, request), {@code count}, {@code body} (message <i>i</i> carries {@code body-i}), {@code bodyBytes} (padded to
 * that size), {@code tags}, {@code key} (key {@code key-i}), {@code properties}, {@code delayLevel}, the setters of 5.x {@code setDelayTimeSec},
 * {@code setDelayTimeMs} and {@code setDeliverTimeMs}, {@code waitStore},
 * {@code shards} (ordered: message <i>i</i> goes to queue <i>i</i> mod shards), {@code shardingKeys} (hashed: message
 * <i>i</i> goes where RocketMQ's selector by hash sends the <i>i</i>-th; a text of digits is a number to it). Each
 * message answers with an event {@code result} or {@code error}, that of a request has the reply's {@code body} and
 * {@code properties}; each order ends with {@code sent}.
 */
final class Produce {
    private final DefaultMQProducer producer;
    private final long timeoutMs;

    private Produce(DefaultMQProducer producer, long timeoutMs) {
        this.producer = producer;
        this.timeoutMs = timeoutMs;
    }

    static void run(Options options, BufferedReader input) throws Exception {
        var producer = new DefaultMQProducer(
                options.text("group", "ternmq-peer"), options.signing(), options.flag("trace", false), null);
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(options.text("instance", "peer"));
        producer.setCompressMsgBodyOverHowmuch(options.number("compressOver", 4096));
        producer.setMaxMessageSize(options.number("maxBodyBytes", 4 * 1024 * 1024));
        producer.setVipChannelEnabled(options.flag("vip", false));
        producer.setSendLatencyFaultEnable(options.flag("latencyFault", false));
        producer.setPollNameServerInterval(options.number("pollMs", 30_000));
        long timeoutMs = options.bigNumber("timeoutMs", 10_000);
        producer.setSendMsgTimeout((int) timeoutMs);
        producer.start();
        try {
            Events.emit("ready", Map.of());
            var orders = new Produce(producer, timeoutMs);
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                orders.carryOut(Options.parse(line));
            }
        } finally {
            producer.shutdown();
        }
    }

    private void carryOut(Options order) throws InterruptedException {
        int count = order.number("count", 1);
        String mode = order.text("mode", "sync");
        var failed = new AtomicInteger();
        if (mode.equals("batch")) {
            List<Message> batch = new ArrayList<>();
            for (int index = 0; index < count; index++) {
                batch.add(message(order, index));
            }
            attempt(0, failed, () -> result(0, producer.send(batch, timeoutMs)));
        } else if (mode.equals("async")) {
            sendAsync(order, count, failed);
        } else {
            int shards = order.number("shards", 1);
            for (int each = 0; each < count; each++) {
                int index = each;
                Message message = message(order, index);
                attempt(index, failed, () -> {
                    switch (mode) {
                        case "sync" -> result(index, producer.send(message, timeoutMs));
                        case "oneway" -> producer.sendOneway(message);
                        case "ordered" -> result(index, producer.send(
                                message,
                                (queues, unused, shard) -> queues.get((Integer) shard % queues.size()),
                                index % shards,
                                timeoutMs));
                        case "hashed" -> result(index, producer.send(
                                message, new SelectMessageQueueByHash(), shardingKey(order, index), timeoutMs));
                        // Without a selector, 4.9.4 hands out the request itself when its send is answered first.
                        case "request" -> reply(index, producer.request(
                                message, new SelectMessageQueueByHash(), index, timeoutMs));
                        default -> throw new IllegalArgumentException("unknown mode «" + mode
                                + "»: use sync, async, oneway, batch, ordered, hashed or request");
                    }
                });
            }
        }
        Events.emit("sent", Map.of("count", count, "failed", failed.get()));
    }

    private void sendAsync(Options order, int count, AtomicInteger failed) throws InterruptedException {
        var answered = new CountDownLatch(count);
        for (int each = 0; each < count; each++) {
            int index = each;
            boolean left = attempt(index, failed, () -> producer.send(message(order, index), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    result(index, sent);
                    answered.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    failed.incrementAndGet();
                    Events.failure("error", failure, Map.of("index", index));
                    answered.countDown();
                }
            }, timeoutMs));
            if (!left) {
                answered.countDown();
            }
        }
        if (!answered.await(3 * timeoutMs, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(answered.getCount() + " asynchronous sends were never answered");
        }
    }

    private interface Send {
        void run() throws Exception;
    }

    /** Sends; a failure is counted, reported and answered with false. */
    private static boolean attempt(int index, AtomicInteger failed, Send send) throws InterruptedException {
        try {
            send.run();
            return true;
        } catch (InterruptedException interrupted) {
            throw interrupted;
        } catch (Exception failure) {
            failed.incrementAndGet();
            Events.failure("error", failure, Map.of("index", index));
            return false;
        }
    }

    private static Message message(Options order, int index) {
        byte[] text = (order.text("body", "body") + "-" + index).getBytes(StandardCharsets.UTF_8);
        byte[] body = new byte[Math.max(text.length, order.number("bodyBytes", 0))];
        Arrays.fill(body, (byte) '.');
        System.arraycopy(text, 0, body, 0, text.length);
        var message = new Message(order.text("topic"), body);
        if (order.has("tags")) {
            message.setTags(order.text("tags"));
        }
        if (order.has("key")) {
            message.setKeys(order.text("key") + "-" + index);
        }
        if (order.has("delayLevel")) {
            message.setDelayTimeLevel(order.number("delayLevel", 0));
        }
        for (String setter : List.of("setDelayTimeSec", "setDelayTimeMs", "setDeliverTimeMs")) {
            if (order.has(setter)) {
                callSetter(message, setter, Long.parseLong(order.text(setter)));
            }
        }
        message.setWaitStoreMsgOK(order.flag("waitStore", true));
        order.pairs("properties").forEach(message::putUserProperty);
        return message;
    }

    /** Clients of 4.9.4 do not have these. */
    private static void callSetter(Message message, String setter, long value) {
        try {
            Message.class.getMethod(setter, long.class).invoke(message, value);
        } catch (ReflectiveOperationException missing) {
            throw new IllegalStateException(setter + " is not a method of this version's Message", missing);
        }
    }

    private static Object shardingKey(Options order, int index) {
        String key = order.texts("shardingKeys").get(index);
        if (!key.matches("-?[0-9]+")) {
            return key;
        }
        long number = Long.parseLong(key);
        return number == (int) number ? (Object) (int) number : (Object) number;
    }

    private static void reply(int index, Message reply) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("index", index);
        line.put("body", Base64.getEncoder().encodeToString(reply.getBody()));
        line.put("properties", reply.getProperties());
        Events.emit("result", line);
    }

    private static void result(int index, SendResult sent) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("index", index);
        line.put("status", sent.getSendStatus().name());
        line.put("msgId", sent.getMsgId());
        line.put("offsetMsgId", sent.getOffsetMsgId());
        line.put("brokerName", sent.getMessageQueue().getBrokerName());
        line.put("queueId", sent.getMessageQueue().getQueueId());
        line.put("queueOffset", sent.getQueueOffset());
        line.put("regionId", sent.getRegionId());
        Events.emit("result", line);
    }
}
