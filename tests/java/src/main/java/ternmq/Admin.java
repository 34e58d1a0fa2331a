package ternmq;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's own {@code mqadmin}. Options: {@code arguments}, a list as on its command line. */
final class Admin {
    private Admin() {}

    static void run(Options options) {
        MQAdminStartup.main0(options.texts("arguments").toArray(String[]::new), null);
    }
}
