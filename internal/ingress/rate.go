package ingress

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ratelimit"
)

const (
	// sourcesMax bounds the sources whose buckets are remembered, at about 300
	// bytes each.
	sourcesMax = 1 << 14
	// burstFactor is the size of a bucket, in seconds of its rate, where the
	// operator names the rate only.
	burstFactor = 5
	// localFactor is how much more a loopback address may do by default: programs
	// of this host, and a proxy on it that nobody declared.
	localFactor = 20
)

var (
	// requestRate is far above what a page with many small files or a busy
	// client does, and below what one core answers.
	requestRate = ratelimit.Limit{PerSecond: 1000, Burst: 5000}
	// failureRate is far above what an expired credential in a loop of a program
	// does, and far below what a guess of a password needs.
	failureRate = ratelimit.Limit{PerSecond: 10, Burst: 100}
	// barRate says for how long a source gets no connection that ignored refusals:
	// until its bucket is full again.
	barRate = ratelimit.Limit{PerSecond: 1, Burst: 1}
)

// Off is the text of a rate without a limit.
const Off = "off"

// Rate is how often a source may do something. The zero Rate is the default.
type Rate struct {
	off   bool
	limit ratelimit.Limit
}

// ParseRate reads a rate: "100" per second, "100:500" with the size of the
// bucket, "off", or nothing for the default.
func ParseRate(s string) (Rate, error) {
	switch s {
	case "":
		return Rate{}, nil
	case Off:
		return Rate{off: true}, nil
	}
	each, most, named := strings.Cut(s, ":")
	perSecond, err := strconv.ParseFloat(each, 64)
	if err != nil || !(perSecond > 0) || perSecond > rateMax {
		return Rate{}, fmt.Errorf("%q is no rate: write requests per second, such as 100, 100:500 with the size of the bucket, or off", s)
	}
	burst := int(max(perSecond*burstFactor, 1))
	if named {
		if burst, err = strconv.Atoi(most); err != nil || burst < 1 || burst > rateMax {
			return Rate{}, fmt.Errorf("%q is no rate: behind the colon is the size of the bucket, from 1 to %d", s, int(rateMax))
		}
	}
	return Rate{limit: ratelimit.Limit{PerSecond: perSecond, Burst: burst}}, nil
}

// rateMax is more than any host answers.
const rateMax = 1e9

// meter counts what sources do.
type meter struct {
	far, local *ratelimit.Buckets[netip.Prefix]
}

// newMeter returns a meter of r, or of the default.
func newMeter(r Rate, byDefault ratelimit.Limit) *meter {
	far, local := r.limit, r.limit
	if r == (Rate{}) {
		far = byDefault
		local = ratelimit.Limit{PerSecond: localFactor * far.PerSecond, Burst: localFactor * far.Burst}
	}
	return &meter{ratelimit.New[netip.Prefix](far, sourcesMax), ratelimit.New[netip.Prefix](local, sourcesMax)}
}

// take takes n from the bucket of a source.
func (m *meter) take(from netip.Addr, n int) ratelimit.Verdict {
	b := m.far
	if from.IsLoopback() {
		b = m.local
	}
	return b.Take(httpx.SourceNetwork(from), n)
}
