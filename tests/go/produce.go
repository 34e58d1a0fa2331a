package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// producing has the options of produce and transact.
type producing struct {
	Namesrv   string
	Group     string
	AccessKey string
	SecretKey string
	// Of transact: what it answers when it is asked.
	Check string
}

func (options producing) list() []producer.Option {
	list := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{options.Namesrv})),
		producer.WithGroupName(options.Group),
		producer.WithSendMsgTimeout(10 * time.Second),
		// Messages with a sharding key stay in one queue.
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	}
	if options.AccessKey != "" {
		list = append(list, producer.WithCredentials(primitive.Credentials{
			AccessKey: options.AccessKey, SecretKey: options.SecretKey,
		}))
	}
	return list
}

// sending is an order: Count messages, whose bodies are numbered.
type sending struct {
	Topic string
	Body  string
	Count int
	// sync (the default), async, oneway or batch.
	Mode       string
	Tags       string
	Key        string
	Shards     int
	DelayLevel int
	Properties map[string]string
	// Of transact: how the local work ends.
	Local string
}

func (order sending) messages() []*primitive.Message {
	if order.Count == 0 {
		order.Count = 1
	}
	list := make([]*primitive.Message, order.Count)
	for number := range list {
		message := primitive.NewMessage(order.Topic, []byte(fmt.Sprintf("%s-%d", order.Body, number)))
		if order.Tags != "" {
			message.WithTag(order.Tags)
		}
		if order.Key != "" {
			message.WithKeys([]string{fmt.Sprintf("%s-%d", order.Key, number)})
		}
		if order.Shards > 0 {
			message.WithShardingKey(fmt.Sprintf("shard-%d", number%order.Shards))
		}
		if order.DelayLevel > 0 {
			message.WithDelayTimeLevel(order.DelayLevel)
		}
		for name, value := range order.Properties {
			message.WithProperty(name, value)
		}
		list[number] = message
	}
	return list
}

var statuses = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func tellResult(index int, result *primitive.SendResult, err error) {
	if err != nil {
		tell(event{"event": "error", "index": index, "error": err.Error()})
		return
	}
	tell(event{
		"event": "result", "index": index, "status": statuses[result.Status], "msgId": result.MsgID,
		"offsetMsgId": result.OffsetMsgID, "transactionId": result.TransactionID,
		"queueId": result.MessageQueue.QueueId, "queueOffset": result.QueueOffset,
	})
}

func produce(in *input) error {
	options := producing{Group: "go-producers"}
	if _, err := in.next(&options); err != nil {
		return err
	}
	client, err := rocketmq.NewProducer(options.list()...)
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	tell(event{"event": "ready"})
	for {
		var order sending
		more, err := in.next(&order)
		if err != nil {
			return err
		}
		if !more {
			return client.Shutdown()
		}
		send(client, order)
		tell(event{"event": "sent"})
	}
}

func send(client rocketmq.Producer, order sending) {
	background := context.Background()
	messages := order.messages()
	switch order.Mode {
	case "async":
		var all sync.WaitGroup
		for index, message := range messages {
			index := index
			all.Add(1)
			err := client.SendAsync(background, func(_ context.Context, result *primitive.SendResult, err error) {
				defer all.Done()
				tellResult(index, result, err)
			}, message)
			if err != nil {
				tellResult(index, nil, err)
				all.Done()
			}
		}
		all.Wait()
	case "oneway":
		for index, message := range messages {
			if err := client.SendOneWay(background, message); err != nil {
				tellResult(index, nil, err)
			}
		}
	case "batch":
		result, err := client.SendSync(background, messages...)
		tellResult(0, result, err)
	default:
		for index, message := range messages {
			result, err := client.SendSync(background, message)
			tellResult(index, result, err)
		}
	}
}
