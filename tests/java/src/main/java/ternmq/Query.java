package ternmq;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Looks messages and positions up. Options: {@code namesrv}, {@code topic}, and {@code key} (at most {@code max}
 * messages), {@code id} (either kind), several of them in {@code keys} and {@code ids}, or neither: then one event
 * {@code queue} a queue with its smallest and largest queue offset, and with {@code timeMs} the one at that time.
 */
final class Query {
    private Query() {}

    static void run(Options options) throws Exception {
        var admin = new DefaultMQAdminExt(options.signing());
        admin.setNamesrvAddr(options.text("namesrv"));
        admin.setInstanceName(options.text("instance", "peer"));
        admin.setVipChannelEnabled(options.flag("vip", false));
        admin.start();
        try {
            String topic = options.text("topic");
            List<String> keys = options.has("key") ? List.of(options.text("key")) : options.texts("keys");
            List<String> ids = options.has("id") ? List.of(options.text("id")) : options.texts("ids");
            for (String key : keys) {
                admin.queryMessage(topic, key, options.number("max", 32), 0, Long.MAX_VALUE)
                        .getMessageList()
                        .forEach(Events::message);
            }
            for (String id : ids) {
                Events.message(admin.viewMessage(topic, id));
            }
            if (keys.isEmpty() && ids.isEmpty()) {
                positions(admin, topic, options);
            }
        } finally {
            admin.shutdown();
        }
    }

    private static void positions(DefaultMQAdminExt admin, String topic, Options options) throws Exception {
        for (var data : admin.examineTopicRouteInfo(topic).getQueueDatas()) {
            for (int queueId = 0; queueId < data.getReadQueueNums(); queueId++) {
                var queue = new MessageQueue(topic, data.getBrokerName(), queueId);
                Map<String, Object> line = new LinkedHashMap<>(Events.queue(queue));
                line.put("minQueueOffset", admin.minOffset(queue));
                line.put("maxQueueOffset", admin.maxOffset(queue));
                if (options.has("timeMs")) {
                    line.put("atTime", admin.searchOffset(queue, options.bigNumber("timeMs", 0)));
                }
                Events.emit("queue", line);
            }
        }
    }
}
