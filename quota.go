package doze

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Quota is one row of the table of what a workspace may have or do.
type Quota struct {
	Name    string
	Unit    string
	Default int64
	Least   int64  // smallest limit: with 0 requests a second nobody could raise it again
	Checked string // where, and what counts
	About   string // one clause, for people
	// Passes says that use ends by itself: a caller may try again. What counts
	// otherwise stays used until somebody deletes something.
	Passes bool
}

// Names of quotas.
const (
	QuotaSandboxes      = "sandboxes"
	QuotaSandboxesAwake = "sandboxesAwake"
	QuotaMemoryAwake    = "memoryAwakeMb"
	QuotaDisk           = "diskMb"
	QuotaVolumes        = "volumes"
	QuotaVolumesSize    = "volumesMb"
	QuotaSnapshots      = "snapshots"
	QuotaKeys           = "keys"
	QuotaConnections    = "connections"
	QuotaRequests       = "requestsPerSecond"
	QuotaEgress         = "egressMbPerDay"
)

// QuotaLimitMax is the largest limit. Encoders of JSON write larger numbers
// differently, and bytes of that many megabytes still fit into 64 bits.
const QuotaLimitMax = 1 << 40

// Quotas is the table. The defaults let one workspace use a whole host: an
// operator with several tenants lowers them.
var Quotas = []Quota{
	{
		Name: QuotaSandboxes, Unit: "sandboxes", Default: 10_000,
		About:   "sandboxes of any status that are not terminated",
		Checked: "in the transaction that inserts a sandbox",
	},
	{
		Name: QuotaSandboxesAwake, Unit: "sandboxes", Default: 10_000, Passes: true,
		About:   "sandboxes that run at the same time; one that sleeps does not count",
		Checked: "in memory, before a sandbox boots or wakes",
	},
	{
		Name: QuotaMemoryAwake, Unit: "MiB", Default: 16 << 20, Passes: true,
		About:   "memory of the sandboxes that run at the same time, as they were promised it",
		Checked: "in memory, before a sandbox boots or wakes",
	},
	{
		Name: QuotaDisk, Unit: "MiB", Default: 64 << 20,
		About:   "disk of checkpoints, archives, snapshots, volumes, versions of volume templates, and images",
		Checked: "in the transaction that inserts a sandbox, a snapshot, a volume, a version or the tag of an image",
	},
	{
		Name: QuotaVolumes, Unit: "volumes", Default: VolumesMax,
		About:   "volumes",
		Checked: "in the transaction that inserts a volume",
	},
	{
		Name: QuotaVolumesSize, Unit: "MiB", Default: 64 << 20,
		About:   "sizes of all volumes, as they were promised",
		Checked: "in the transaction that inserts or grows a volume",
	},
	{
		Name: QuotaSnapshots, Unit: "snapshots", Default: SnapshotsMax,
		About:   "snapshots",
		Checked: "in the transaction that inserts a snapshot",
	},
	{
		Name: QuotaKeys, Unit: "keys", Default: KeysMax,
		About:   "API keys, those of service accounts included",
		Checked: "in the transaction that inserts a key",
	},
	{
		Name: QuotaConnections, Unit: "requests", Default: 10_000, Least: 1, Passes: true,
		About:   "requests, streams and WebSockets to sandboxes that are open at the same time",
		Checked: "in memory, before a request is passed to a sandbox",
	},
	{
		Name: QuotaEgress, Unit: "MiB", Default: 16 << 20, Passes: true,
		About:   "what sandboxes send to and receive from others on a day in UTC",
		Checked: "in memory, for each connection of a sandbox to others, and once a second for those that are open",
	},
	{
		Name: QuotaRequests, Unit: "requests per second", Default: 5000, Least: 1, Passes: true,
		About:   "requests to the control API and to sandboxes; twice as many may come at once",
		Checked: "in memory, when the caller of a request is known",
	},
}

// QuotaOf returns a row of the table, or false.
func QuotaOf(name string) (Quota, bool) {
	i := slices.IndexFunc(Quotas, func(q Quota) bool { return q.Name == name })
	if i < 0 {
		return Quota{}, false
	}
	return Quotas[i], true
}

// QuotaNames are the names of the table, in its order.
func QuotaNames() []string {
	var all []string
	for _, q := range Quotas {
		all = append(all, q.Name)
	}
	return all
}

// Limits are limits by the name of a quota. Quotas that are not in it have
// another limit, such as the default.
type Limits map[string]int64

// Of returns the limit of a quota: that of the first of all which has one, or
// the default of the table.
func (l Limits) Of(name string, defaults Limits) int64 {
	if v, ok := l[name]; ok {
		return v
	}
	if v, ok := defaults[name]; ok {
		return v
	}
	q, _ := QuotaOf(name)
	return q.Default
}

// Check adds each limit that cannot be.
func (l Limits) Check(p *Problems, field string) {
	for _, q := range Quotas {
		if v, ok := l[q.Name]; ok && (v < q.Least || v > QuotaLimitMax) {
			p.Add(field+q.Name, "is %d; it must be %d to %d", v, q.Least, int64(QuotaLimitMax))
		}
	}
	for name := range l {
		if _, known := QuotaOf(name); !known {
			p.Add(field+fmt.Sprintf("%.80s", name), "is no quota; there are %s", strings.Join(QuotaNames(), ", "))
		}
	}
	slices.Sort(*p)
}

// ParseLimits reads name=value pairs with commas between them.
func ParseLimits(text string) (Limits, error) {
	l := Limits{}
	var p Problems
	for pair := range strings.SplitSeq(text, ",") {
		if pair = strings.TrimSpace(pair); pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			p.Add(fmt.Sprintf("%.80q", pair), "must be a quota and its limit, such as sandboxes=100")
			continue
		}
		l[name] = n
	}
	l.Check(&p, "")
	return l, p.Err()
}

// QuotaExceeded is the error for a call that would take more of a quota than
// its workspace may have.
func QuotaExceeded(name string, used, limit int64) error {
	q, _ := QuotaOf(name)
	advice := "delete something, or ask the operator for more"
	if q.Passes {
		advice = "try again later, or ask the operator for more"
	}
	return &Error{
		Kind: Exhausted, Name: NameQuotaExceeded,
		Message: fmt.Sprintf("the workspace has used up its quota %s, %d of %d %s: %s", name, used, limit, q.Unit, advice),
		Fields:  map[string]any{"quota": name, "used": used, "limit": limit},
	}
}

// Definitive reports whether the same call would fail again for as long as
// nobody changes something: a client that repeats it wastes its time.
func (e *Error) Definitive() bool {
	name, _ := e.Fields["quota"].(string)
	q, ok := QuotaOf(name)
	return e.Name == NameQuotaExceeded && ok && !q.Passes
}

// QuotaStatus is a quota of a workspace.
type QuotaStatus struct {
	Name        string `json:"name"`
	Unit        string `json:"unit"`
	Used        int64  `json:"used"`
	Limit       int64  `json:"limit"`
	Default     int64  `json:"default"` // of this platform
	Description string `json:"description"`
}
