package ingress

// A reason is why something was refused or ended before its time.
type reason uint8

const (
	noRoom        reason = iota // too many connections
	noDescriptor                // too few descriptors are left for the daemon
	crowdedSource               // too many connections of one source
	evicted                     // made room for a source with fewer connections
	deaf                        // of a client that ignores refusals
	neverAsked                  // no first request in time
	tooManyFields               // a header of too many lines
	overRate                    // too many requests of one source
	overFailures                // too many answers 401 to one source
	bodyStopped                 // no byte of a body in time
	answerStopped               // no byte of an answer was taken in time
	reasons
)

// names are the values of the label "reason".
var names = [reasons]string{
	noRoom: "connections", noDescriptor: "descriptors", crowdedSource: "source", evicted: "evicted", deaf: "refusals", neverAsked: "opening",
	tooManyFields: "fields", overRate: "rate", overFailures: "failures", bodyStopped: "body_idle", answerStopped: "write_stall",
}

// ofRequests are the reasons that are about requests. The others are about
// connections.
var ofRequests = map[reason]bool{tooManyFields: true, overRate: true, overFailures: true, bodyStopped: true, answerStopped: true}

func (in *Ingress) count(r reason) { in.refused[r].Add(1) }

// Counts are what happened since the start, by reason.
type Counts struct {
	Open     int               // connections, now
	Refused  map[string]uint64 // connections
	Requests map[string]uint64
}

// Counts returns what happened so far.
func (in *Ingress) Counts() Counts {
	c := Counts{Open: in.roster.len(), Refused: map[string]uint64{}, Requests: map[string]uint64{}}
	for r, name := range names {
		to := c.Refused
		if ofRequests[reason(r)] {
			to = c.Requests
		}
		to[name] = in.refused[r].Load()
	}
	return c
}
