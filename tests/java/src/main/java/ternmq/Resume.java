package ternmq;

import java.util.Map;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Has a discarded half message checked again, by the class behind {@code mqadmin}, which has no command for it.
 *
 * <p>Options: {@code namesrv}, {@code msgId} (an offset id or a unique key). Event: {@code resumed} with {@code success}.
 */
final class Resume {
    private Resume() {}

    static void run(Options options) throws Exception {
        var admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(options.text("namesrv"));
        admin.start();
        try {
            // The call without a topic is gone in 5.3.
            boolean success = admin.resumeCheckHalfMessage("TRANS_CHECK_MAX_TIME_TOPIC", options.text("msgId"));
            Events.emit("resumed", Map.of("success", success));
        } finally {
            admin.shutdown();
        }
    }
}
