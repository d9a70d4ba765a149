package doze

// FeedMessage is what one message of the feed of a workspace says.
type FeedMessage struct {
	// At is when the platform looked. All messages of one look have the same moment.
	At Time `json:"at"`
	// Sandboxes are all sandboxes in a state, and those that differ in a change.
	Sandboxes []FeedSandbox `json:"sandboxes,omitempty"`
	// Gone are the names of sandboxes that the list has no longer.
	Gone []string `json:"gone,omitempty"`
	// Total is the number of sandboxes, at the end of a state.
	Total *int `json:"total,omitempty"`
}

// FeedSandbox is a sandbox as the feed shows it. It has what the sandbox takes of its host,
// what it has done, and the part of its record that lists show.
type FeedSandbox struct {
	Name   string `json:"name"`
	Status string `json:"status"` // as in [Sandbox]
	State  string `json:"state"`  // likewise
	// Version differs after each change of the record and after each event of the node.
	// Versions have no order.
	Version    string            `json:"version"`
	Labels     map[string]string `json:"labels,omitempty"`
	Image      string            `json:"image"`
	Origin     *Origin           `json:"origin,omitempty"` // as in [Sandbox]
	CreatedAt  Time              `json:"createdAt"`
	LastUsedAt Time              `json:"lastUsedAt"`
	// Busy is the share of its processors that the sandbox took between the last two
	// looks, from 0 to 1.
	Busy         float64        `json:"busy"`
	CountedSince Time           `json:"countedSince"` // as in [Usage], with all members below
	Tier         string         `json:"tier"`
	Memory       MemoryUsage    `json:"memory"`
	Processor    ProcessorUsage `json:"processor"`
	Disk         DiskUsage      `json:"disk"`
	Network      NetworkUsage   `json:"network"`
	Wakes        WakeUsage      `json:"wakes"`
	Sleeps       int64          `json:"sleeps"`
	// LastWake is the trace of the last wake, in the change that tells of this wake. A
	// wake that is shorter than the time between two looks has one too.
	LastWake *Trace `json:"lastWake,omitempty"`
}
