"""The settings of Apache RocketMQ 4.9 and 5.x by name, in its own spelling (T2): the fields of ``BrokerConfig``,
``MessageStoreConfig``, ``NamesrvConfig``, ``NettyServerConfig`` and ``NettyClientConfig`` in 4.9.4 and 5.2.0, and some
newer ones.

``config`` uses them. TernMQ's settings are written under the names that RocketMQ's tools know, quirks included
(``brokerIP1``, ``warmMapedFileEnable``). And a configuration file of RocketMQ contains many settings that TernMQ does
not support, of three kinds:

- ``REFUSED``: access control and encryption. A server configured to have them, but without them, would be unprotected,
  so it does not start.
- ``UNKEPT``: settings that users rely on, or would look for. For each, a warning says what happens instead.
- all others (thread pools, Netty's buffers, details of files that TernMQ does not have): an info line.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_BROKER: Final = """
accountStatsEnable accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity aclEnable
adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity asyncSendEnable autoCreateSubscriptionGroup
autoCreateTopicEnable autoDeleteUnusedStats broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond
brokerClusterName brokerConfigPath brokerElectionPriority brokerFastFailureEnable brokerHeartbeatInterval brokerId
brokerIP1 brokerIP2 brokerName brokerNotActiveTimeoutMillis brokerPermission brokerTopicEnable cgColdReadThreshold
channelExpiredTimeout checkSyncStateSetPeriod cleanOfflineBrokerInterval clientManagerThreadPoolQueueCapacity
clientManageThreadPoolNums clusterTopicEnable coldCtrStrategyEnable commercialBaseCount commercialBigCount
commercialEnable commercialSizePerMsg commercialTimerCount commercialTransCount compatibleWithOldNameSrv
compressedRegister configBlackList consumerFallbehindThreshold consumerManagerThreadPoolQueueCapacity
consumerManageThreadPoolNums consumerOffsetUpdateVersionStep controllerAddr controllerHeartBeatTimeoutMills
defaultMessageRequestMode defaultPopShareQueueNum defaultTopicQueueNums delayOffsetUpdateVersionStep
disableConsumeIfConsumerReadSlowly enableBroadcastOffsetStore enableCalcFilterBitMap enableControllerMode
enableDetailStat enableMixedMessageType enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease
enablePopBatchAck enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePropertyFilter enableRemoteEscape
enableRetryTopicV2 enableSingleTopicRegister enableSkipLongAwaitingAck enableSlaveActingMaster enableSplitRegistration
endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation expectConsumerNumUseFilter
fetchControllerAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNameSrvAddrByDnsLookup fetchNamesrvAddrInterval
filterDataCleanTimeSpan filterServerNums filterSupportRetry flushConsumerOffsetHistoryInterval
flushConsumerOffsetInterval forceRegister forwardTimeout globalColdReadThreshold heartbeatThreadPoolNums
heartbeatThreadPoolQueueCapacity highSpeedMode initPopOffsetByCheckMsgInMem isolateLogEnable listenPort
litePullMessageEnable litePullMessageThreadPoolNums litePullThreadPoolQueueCapacity loadBalancePollNameServerInterval
loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode longPollingEnable maxDelayTime
maxErrorRateOfBloomFilter maxPopPollingSize messageStorePlugIn metricGrpcExporterIntervalInMills
metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader
metricsGrpcExporterTarget metricsInDelta metricsLabel metricsOtelCardinalityLimit metricsPromExporterHost
metricsPromExporterPort msgTraceTopicName namesrvAddr notifyConsumerIdsChangedEnable popCkMaxBufferSize
popCkOffsetMaxQueueSize popCkStayBufferTime popCkStayBufferTimeOut popInflightMessageThreshold popPollingMapSize
popPollingSize popResponseReturnActualRetryTopic processReplyMessageThreadPoolNums pullMessageThreadPoolNums
pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
queryThreadPoolQueueCapacity realTimeNotifyConsumerChange recoverConcurrently recoverThreadPoolNums regionId
registerBrokerTimeoutMills registerNameServerPeriod rejectPullConsumerEnable rejectTransactionMessage
replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval reviveMaxSlow
reviveQueueNum reviveScanTime rocketmqHome sendHeartbeatTimeoutMillis sendMessageThreadPoolNums
sendThreadPoolQueueCapacity serverLoadBalancerEnable shortPollingTimeMills skipPreOnline slaveReadEnable
splitRegistrationSize startAcceptSendRequestTimeStamp storeReplyMessageEnable subscriptionExpiredTimeout
syncBrokerMemberGroupPeriod syncBrokerMetadataPeriod syncControllerMetadataPeriod traceOn traceTopicEnable
transactionCheckInterval transactionCheckMax transactionMetricFlushInterval transactionOpBatchInterval
transactionOpMsgMaxSize transactionTimeOut transferMsgByHeap usePIDColdCtrStrategy useServerSideResetOffset
useStaticSubscription validateSystemTopicWhenUpdateTopic waitTimeMillsInAckQueue waitTimeMillsInHeartbeatQueue
waitTimeMillsInLitePullQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
"""

_STORE: Final = """
accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio allAckInSyncStateSet asyncLearner
autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums bitMapLengthConsumeQueueExt brokerRole
checkCRCOnRecover cleanFileForciblyEnable cleanResourceInterval cleanRocksDBDirtyCQIntervalMin cleanSwapedMapInterval
coldDataFlowControlEnable coldDataScanEnable commitCommitLogLeastPages commitCommitLogThoroughInterval
commitIntervalCommitLog commitLogForceSwapMapInterval commitLogSwapMapInterval commitLogSwapMapReserveFileNum
compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal compactionThreadNum
correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval dataReadAheadEnable debugLockEnable
defaultQueryMaxNum deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax deleteWhen
destroyMapedFileIntervalForcibly disappearTimeAfterStart diskFallRecorded diskMaxUsedSpaceRatio
diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread
dLegerGroup dLegerPeers dLegerSelfId duplicationEnable enableAsyncReput enableAutoInSyncReplicas enableBatchPush
enableBuildConsumeQueueConcurrently enableCleanExpiredOffset enableCompaction enableConsumeQueueExt
enabledAppendPropCRC enableDLegerCommitLog enableLmq enableMultiDispatch enableRocksDBLog enableScheduleAsyncDeliver
enableScheduleMessageStats fastFailIfNoBufferInStorePool fileReservedTime flushCommitLogLeastPages
flushCommitLogThoroughInterval flushCommitLogTimed flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
flushDelayOffsetInterval flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
flushLeastPagesWhenWarmMapedFile forceVerifyPropCRC haFlowControlEnable haHousekeepingInterval haListenPort
haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval haSlaveFallbehindMax
haTransferBatchSize inSyncReplicas logicalDiskSpaceCleanForciblyThreshold logicQueueForceSwapMapInterval
logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum mappedFileSizeCommitLog mappedFileSizeConsumeQueue
mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog mappedFileSwapEnable mapperFileSizeBatchConsumeQueue
maxAsyncPutMessageRequests maxBatchDeleteFilesNum maxChecksumRange maxConsumeQueueScan maxFilterMessageSize
maxHashSlotNum maxHaTransferByteInSecond maxIndexNum maxLmqConsumeQueueNum maxMessageSize maxMsgsNumBatch
maxOffsetMapSize maxRecoveryCommitlogFiles maxSlaveResendLength maxTopicLength maxTransferBytesOnMessageInDisk
maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory
memTableFlushIntervalMs messageDelayLevel messageIndexEnable messageIndexSafe minInSyncReplicas offsetCheckInSlave
osPageCacheBusyTimeOutMills preferredLeaderId pullBatchMaxMessageCount putMessageTimeout putMsgIndexHightWater
readOnlyCommitLogStorePaths realTimePersistRocksDBConfig recheckReputOffsetFromCq redeleteHangedFileInterval
replicasPerDiskPartition sampleCountThreshold sampleSteps scheduleAsyncDeliverMaxPendingLimit
scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable slaveTimeout statRocksDBCQIntervalSec
storePathBrokerIdentity storePathCommitLog storePathDLedgerCommitLog storePathEpochFile storePathRootDir storeType
syncFlushTimeout syncFromLastFile syncMasterFlushOffsetWhenStartup timerCheckMetricsWhen timerColdDataCheckIntervalMs
timerCongestNumEachSlot timerEnableCheckMetrics timerEnableDisruptor timerFlushIntervalMs timerGetMessageThreadNum
timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold timerPrecisionMs timerProgressLogIntervalMs
timerPutMessageThreadNum timerRollWindowSlot timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable
timerWheelEnable topicQueueLockNum totalReplicas transientStorePoolEnable transientStorePoolSize
travelCqFileNumWhenGetMessage useReentrantLockWhenPutMessage wakeCommitWhenPutMessage wakeFlushWhenPutMessage
warmMapedFileEnable
"""

_NAMESRV: Final = """
clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest configStorePath defaultThreadPoolNums
defaultThreadPoolQueueCapacity deleteTopicWithBrokerRegistration enableAllTopicList enableControllerInNamesrv
enableTopicList kvConfigPath needWaitForService notifyMinBrokerIdChanged orderMessageEnable productEnvName
returnOrderTopicConfigToBroker scanNotActiveBrokerInterval supportActingMaster unRegisterBrokerQueueCapacity
waitSecondsForService
"""

_NETTY: Final = """
bindAddress channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
connectTimeoutMillis disableCallbackExecutor disableNettyWorkerGroup enableReconnectForGoAway enableShutdownGracefully
enableTransparentRetry listenPort maxReconnectIntervalTimeSeconds serverAsyncSemaphoreValue
serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverOnewaySemaphoreValue
serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds socksProxyConfig useEpollNativeSelector useTLS
writeBufferHighWaterMark writeBufferLowWaterMark
"""

#: Of versions after 5.2.0, and some that are in many files although no version has such a field.
_OTHER: Final = """
abortFile authConfigPath authenticationEnabled authenticationMetadataProvider authenticationProvider
authenticationStrategy authenticationWhitelist authorizationEnabled authorizationMetadataProvider authorizationProvider
authorizationStrategy authorizationWhitelist initAuthenticationUser innerClientAuthenticationCredentials
migrateAuthFromV1Enabled popFromRetryProbability readUnCommitted recallMessageEnable storeCheckpoint
storePathConsumeQueue storePathIndex timerEnableRetryUntilSuccess
"""

#: System properties of RocketMQ's Java programs (``TlsSystemConfig``), which also occur in files.
_TLS: Final = """
tls.client.authServer tls.client.certPath tls.client.keyPassword tls.client.keyPath tls.client.trustCertPath
tls.config.file tls.enable tls.server.authClient tls.server.certPath tls.server.keyPassword tls.server.keyPath
tls.server.mode tls.server.need.client.auth tls.server.trustCertPath tls.test.mode.enable
"""

#: All settings of RocketMQ, in its spelling.
ROCKETMQ_SETTINGS: Final = frozenset(f"{_BROKER} {_STORE} {_NAMESRV} {_NETTY} {_OTHER} {_TLS}".split())


class Instead(NamedTuple):
    """A setting that is not supported: what happens instead, and the values for which that makes no difference."""

    sentence: str
    harmless: frozenset[str] = frozenset()

    def asks_for_more(self, value: str) -> bool:
        """Whether a value requests a behaviour that is not supported."""
        return value.strip().lower() not in self.harmless


_OFF: Final = frozenset({"", "false", "no", "off", "0"})
_ON: Final = frozenset({"true", "yes", "on", "1"})
_ONE: Final = frozenset({"1"})

#: RocketMQ's own classes, which do what TernMQ does.
_ROCKETMQS_OWN: Final = frozenset(
    {
        "",
        *(
            f"org.apache.rocketmq.auth.{part}.{name}".lower()
            for part, name in (
                ("authentication.provider", "DefaultAuthenticationProvider"),
                ("authentication.provider", "LocalAuthenticationMetadataProvider"),
                ("authentication.strategy", "StatelessAuthenticationStrategy"),
                ("authentication.strategy", "StatefulAuthenticationStrategy"),
                ("authorization.provider", "DefaultAuthorizationProvider"),
                ("authorization.provider", "LocalAuthorizationMetadataProvider"),
                ("authorization.strategy", "StatelessAuthorizationStrategy"),
                ("authorization.strategy", "StatefulAuthorizationStrategy"),
            )
        ),
    }
)
_OWN_AUTH: Final = "classes of Java are not supported: use authValidators for a validator of your own"
_NO_WHITELIST: Final = "requests that need no user are not supported: every request must be signed"

#: A server with one of these settings does not start.
REFUSED: Final = {
    "authenticationMetadataProvider": Instead(_OWN_AUTH, _ROCKETMQS_OWN),
    "authenticationProvider": Instead(_OWN_AUTH, _ROCKETMQS_OWN),
    "authenticationStrategy": Instead(_OWN_AUTH, _ROCKETMQS_OWN),
    "authenticationWhitelist": Instead(_NO_WHITELIST, frozenset({""})),
    "authorizationMetadataProvider": Instead(_OWN_AUTH, _ROCKETMQS_OWN),
    "authorizationProvider": Instead(_OWN_AUTH, _ROCKETMQS_OWN),
    "authorizationStrategy": Instead(_OWN_AUTH, _ROCKETMQS_OWN),
    "authorizationWhitelist": Instead(_NO_WHITELIST, frozenset({""})),
    "useTLS": Instead("this switch of Java clients is not supported yet: set tls.enable=true instead", _OFF),
}

_NO_REPLICATION: Final = "not supported yet: a broker has one master, and slaves that copy its log (brokerRole)"
_NO_CONTROLLER: Final = "controllers are not supported: use a Raft group (enableDLegerCommitLog=true) instead"
_AS_ROCKETMQ: Final = "TernMQ ignores it, as RocketMQ does: the files are always below storePathRootDir"
_NO_LIGHT: Final = "light queues are not supported: a message is stored in the queue of its topic only"
_NO_METRICS: Final = "metrics are not exported yet: use `tern` or mqadmin to see the counters"

#: What happens instead of the requested behaviour.
UNKEPT: Final = {
    # Replication and roles.
    "allAckInSyncStateSet": Instead(_NO_REPLICATION, _OFF),
    "asyncLearner": Instead(_NO_REPLICATION, _OFF),
    "controllerAddr": Instead(_NO_CONTROLLER, frozenset({""})),
    "duplicationEnable": Instead(_NO_REPLICATION, _OFF),
    "enableAutoInSyncReplicas": Instead("the number of replicas in sync is never lowered by itself", _OFF),
    "enableControllerInNamesrv": Instead(_NO_CONTROLLER, _OFF),
    "enableControllerMode": Instead(_NO_CONTROLLER, _OFF),
    "enableSlaveActingMaster": Instead(_NO_REPLICATION, _OFF),
    "enableRemoteEscape": Instead("messages are never sent to another broker while there is no master", _OFF),
    "haFlowControlEnable": Instead("the transfer of the log to slaves is not limited", _OFF),
    "lockInStrictMode": Instead("queue locks are kept on the master only", _OFF),
    "notifyMinBrokerIdChanged": Instead("brokers are not notified when a master is lost", _OFF),
    "supportActingMaster": Instead(
        "acting masters are not supported: without a master, queues can be read but not written", _OFF
    ),
    "totalReplicas": Instead(_NO_REPLICATION, _ONE),
    # Where files are, and how they are written.
    "abortFile": Instead(_AS_ROCKETMQ),
    "configStorePath": Instead("settings changed at run time are not written to a file"),
    "enableCompaction": Instead("topics with cleanup.policy=COMPACTION are not compacted", _OFF),
    "enabledAppendPropCRC": Instead("records are stored without a checksum of their properties", _OFF),
    "forceVerifyPropCRC": Instead("checksums of properties are not verified", _OFF),
    "messageStorePlugIn": Instead("store plug-ins are not supported", frozenset({""})),
    "storeCheckpoint": Instead(_AS_ROCKETMQ),
    "storePathConsumeQueue": Instead(_AS_ROCKETMQ),
    "storePathIndex": Instead(_AS_ROCKETMQ),
    "storeType": Instead("queues are kept in files, never in RocksDB", frozenset({"default"})),
    "transientStorePoolEnable": Instead("records are always written to the mapped log directly", _OFF),
    # Permissions and limits.
    "brokerFastFailureEnable": Instead(
        "requests that waited too long are always refused; to switch this off, set waitTimeMillsInSendQueue=0 "
        "and similar settings to 0",
        _ON,
    ),
    "brokerTopicEnable": Instead("the topic named after the broker is always available", _ON),
    "clusterTopicEnable": Instead("the topic named after the cluster is always available", _ON),
    "disableConsumeIfConsumerReadSlowly": Instead("a group with a large lag can always read", _OFF),
    "coldCtrStrategyEnable": Instead("reads of old messages are not limited per group", _OFF),
    "coldDataFlowControlEnable": Instead("reads of old messages are not limited per group", _OFF),
    "enableAllTopicList": Instead("every client can list all topics", _ON),
    "enablePopMessageThreshold": Instead("the number of unacknowledged popped messages is not limited per queue", _OFF),
    "enableTopicList": Instead("every client can list topics", _ON),
    "litePullMessageEnable": Instead("lite pull consumers are always served", _ON),
    "maxTopicLength": Instead("topic names can have at most 127 characters", frozenset({"127"})),
    "needWaitForService": Instead(
        "routes are returned immediately after the start, even if brokers are not registered yet", _OFF
    ),
    "rejectPullConsumerEnable": Instead("pull consumers are always served", _OFF),
    "returnOrderTopicConfigToBroker": Instead("the settings of ordered topics are always returned to brokers", _ON),
    "serverChannelMaxIdleTimeSeconds": Instead("idle connections are closed after 120 s", frozenset({"120"})),
    "serverLoadBalancerEnable": Instead("brokers always assign queues to clients that ask for it", _ON),
    "startAcceptSendRequestTimeStamp": Instead("messages are accepted immediately after the start", frozenset({"0"})),
    "useStaticSubscription": Instead("subscriptions come from heartbeats only", _OFF),
    "validateSystemTopicWhenUpdateTopic": Instead("system topics can never be changed", _ON),
    "configBlackList": Instead(
        "the settings that can be changed at run time are fixed: `tern config show` lists them",
        frozenset({"", "configblacklist;brokerconfigpath"}),
    ),
    "enableNetWorkFlowControl": Instead("connections have limits of their own: maxConnections and others", _OFF),
    "realTimeNotifyConsumerChange": Instead(
        "members are always notified at once; notifyConsumerIdsChangedEnable=false switches it off", _ON
    ),
    # Delayed messages.
    "timerInterceptDelayLevel": Instead("messages with a delay level always wait in the queues of the levels", _OFF),
    "timerPrecisionMs": Instead("delivery times are kept to the second", frozenset({"1000"})),
    "timerStopDequeue": Instead("messages are always delivered when they are due", _OFF),
    "timerStopEnqueue": Instead("messages with a delivery time are always accepted", _OFF),
    # Name servers.
    "clusterTest": Instead("routes are never requested from another environment", _OFF),
    "fetchNamesrvAddrByAddressServer": Instead(
        "name servers are taken from namesrvAddr, which may be the URL of an address server: "
        "namesrvAddr=http://HOST:8080/rocketmq/nsaddr",
        _OFF,
    ),
    "fetchNameSrvAddrByDnsLookup": Instead("name servers are taken from namesrvAddr only", _OFF),
    # Features.
    "enableBroadcastOffsetStore": Instead("members of a broadcast keep their progress themselves", _OFF),
    "enableLmq": Instead(_NO_LIGHT, _OFF),
    "enableMultiDispatch": Instead(_NO_LIGHT, _OFF),
    "filterServerNums": Instead("filter servers are not supported: use tags or SQL92", frozenset({"0"})),
    "metricsExporterType": Instead(_NO_METRICS, frozenset({"disable", "0"})),
}
