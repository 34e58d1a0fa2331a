package main

import "sync"

// counter counts by key.
type counter struct {
	lock   sync.Mutex
	counts map[string]int32
}

func newCounter() *counter { return &counter{counts: map[string]int32{}} }

func (one *counter) add(key string) int32 {
	one.lock.Lock()
	defer one.lock.Unlock()
	one.counts[key]++
	return one.counts[key]
}
