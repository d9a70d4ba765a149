package doze

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Limits and defaults of a sandbox. MemoryMin is what the engine and a shell
// need to run at all.
const (
	MemoryDefault Megabytes = 4096
	MemoryMin     Megabytes = 128
	MemoryMax     Megabytes = 1 << 20
	StorageMin    Megabytes = 64
	StorageMax    Megabytes = 1 << 20
	ImageDefault            = "blaxel/base-image:latest"
	ImageMax                = 512
	EnvsMax                 = 256
	EnvBytesMax             = 256 << 10
	PortsMax                = 64
	GraceMax                = 600
	Generation              = "mk3.1" // what nodeGeneration reports (spec section 9)
	AgentPort               = 8080    // where the agent listens inside every sandbox
)

// TerminalProtocol is the WebSocket protocol of a terminal whose client says what to
// run, misses no output, and hears how it ended. An agent that does not know it runs a
// shell for people.
const TerminalProtocol = "doze.terminal.1"

// CountNetworks is an option of prctl(2) that the engine of a sandbox has: it
// returns how many network namespaces are in use that processes inside have made.
const CountNetworks = 0x444f5a45

// Megabytes is an amount of memory in MiB.
type Megabytes int

// CPUs is the share of the host's processors that goes with an amount of
// memory (spec 2.4): 4096 MB give 2.
func (m Megabytes) CPUs() float64 { return float64(m) / 2048 }

// Bytes returns m in bytes.
func (m Megabytes) Bytes() int64 { return int64(m) << 20 }

// Sandbox is a machine that runs a caller's code (spec 2.2).
type Sandbox struct {
	Metadata Metadata    `json:"metadata"`
	Spec     SandboxSpec `json:"spec"`
	Observed             // read-only; embedded so that one assignment clears it
}

// Observed is what the platform knows and a caller cannot set.
type Observed struct {
	Archive *Archive `json:"archive,omitempty"` // of the last time that it was archived
	// Entrypoint is the process of its image; nil if the image says nothing of one.
	Entrypoint     *Entrypoint `json:"entrypoint,omitempty"`
	Events         []Event     `json:"events,omitempty"`
	ExpiresIn      *int64      `json:"expiresIn,omitempty"` // seconds; nil without a deadline
	LastUsedAt     Time        `json:"lastUsedAt,omitzero"`
	NodeGeneration string      `json:"nodeGeneration,omitempty"`
	// Origin is what it was forked from; nil if it is no fork.
	Origin *Origin `json:"origin,omitempty"`
	// Recovery is the last return to a checkpoint; nil if there was none.
	Recovery *Recovery `json:"recovery,omitempty"`
	State    string    `json:"state,omitempty"`
	Status   string    `json:"status,omitempty"`
}

// Recovery is a return of a sandbox to its last checkpoint after a crash. What the
// sandbox did between the two moments is lost.
type Recovery struct {
	At           Time `json:"at"`           // when the sandbox went back
	CheckpointAt Time `json:"checkpointAt"` // when the checkpoint was made
}

// SandboxSpec is what a caller wants (spec 2.3).
type SandboxSpec struct {
	Enabled   *bool              `json:"enabled,omitempty"` // nil means true
	Lifecycle *Lifecycle         `json:"lifecycle,omitempty"`
	Network   *Network           `json:"network,omitempty"`
	Region    string             `json:"region,omitempty"`
	Runtime   Runtime            `json:"runtime"`
	Volumes   []VolumeAttachment `json:"volumes,omitempty"`
	VPC       string             `json:"vpc,omitempty"`
}

// IsEnabled reports whether the sandbox may accept connections.
func (s *SandboxSpec) IsEnabled() bool { return s.Enabled == nil || *s.Enabled }

// Runtime is the machine of a sandbox (spec 2.4).
type Runtime struct {
	Envs      []Env             `json:"envs,omitempty"`
	Expires   string            `json:"expires,omitempty"` // RFC 3339
	ExtraArgs map[string]string `json:"extraArgs,omitempty"`
	Image     string            `json:"image,omitempty"`
	Memory    Megabytes         `json:"memory,omitempty"`
	Ports     []Port            `json:"ports,omitempty"`
	// Storage is how much the files of the sandbox may take on the disk of its host. They are
	// in its memory if it is 0.
	Storage Megabytes `json:"storage,omitempty"`
	Grace   int       `json:"terminationGracePeriodSeconds,omitempty"`
	TTL     string    `json:"ttl,omitempty"` // a Duration
}

// Env is one environment variable (spec 2.4). ValueFrom is the Kubernetes form,
// a [ValueSource], and is kept as it came. No Value is an empty one to the
// processes inside; in a change it means that of before.
type Env struct {
	Name      string          `json:"name"`
	Value     *string         `json:"value,omitempty"` // empty, if at all, with a ValueFrom
	Secret    bool            `json:"secret,omitempty"`
	ValueFrom json.RawMessage `json:"valueFrom,omitempty"`
}

// MaskedValue stands for the value of a secret variable in every answer. A
// caller that sends it back means "unchanged".
const MaskedValue = "********"

// Port is a port that a sandbox serves.
type Port struct {
	Target   int    `json:"target"`
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol,omitempty"` // empty means HTTP
}

// Protocols of a [Port] that previews serve without HTTP.
const (
	ProtocolTCP = "TCP" // TLS ends at the platform
	ProtocolTLS = "TLS" // the sandbox has the certificate, and gets the bytes of TLS
)

// Streams are the ports that are declared with a protocol other than HTTP that a preview
// can serve, with that protocol. Of two declarations of a port, the first counts. Those by
// which previews name the sandbox API are none. It is nil if there are no others.
func (r Runtime) Streams() map[int]string {
	var all map[int]string
	declared := map[int]bool{}
	for _, p := range r.Ports {
		sandboxAPI := p.Target == AgentPort || p.Target == ControlPort
		if !declared[p.Target] && !sandboxAPI && (p.Protocol == ProtocolTCP || p.Protocol == ProtocolTLS) {
			if all == nil {
				all = map[int]string{}
			}
			all[p.Target] = p.Protocol
		}
		declared[p.Target] = true
	}
	return all
}

var (
	envNameForm   = formOf(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
	portProtocols = []string{"HTTP", ProtocolTCP, "UDP", ProtocolTLS} // the first is the default
	extraArgKeys  = []string{ExtraContainers, ExtraEntrypoint, ExtraIPTables, ExtraNFS, ExtraTun}
)

// Keys of [Runtime.ExtraArgs], and what one of them is if the sandbox has it.
const (
	ExtraContainers = "containers" // docker and podman run inside
	ExtraEntrypoint = "entrypoint" // the program of the image runs
	ExtraIPTables   = "iptables"
	ExtraNFS        = "nfs"
	ExtraTun        = "tun"
	extraOn         = "enabled"
	extraOff        = EntrypointDisabled
)

// ExtraDefault is the extra argument of this key in a sandbox whose caller said nothing.
func ExtraDefault(key string) string {
	if key == ExtraEntrypoint {
		return extraOn
	}
	return extraOff
}

// Has reports whether the extra argument of this key is enabled.
func (r *Runtime) Has(key string) bool {
	return cmp.Or(r.ExtraArgs[key], ExtraDefault(key)) == extraOn
}

// Default fills in what a caller left out and the spec gives a default for.
func (s *Sandbox) Default(region string) {
	r := &s.Spec.Runtime
	if r.Image == "" {
		r.Image = ImageDefault
	}
	if r.Memory == 0 {
		r.Memory = MemoryDefault
	}
	if s.Spec.Region == "" {
		s.Spec.Region = region
	}
	if s.Spec.Network.IsZero() {
		s.Spec.Network = nil // {} is how callers take all rules away
	}
	s.Spec.Lifecycle = s.Spec.Lifecycle.capped()
	for i := range s.Spec.Volumes {
		if s.Spec.Volumes[i].Type == "" {
			s.Spec.Volumes[i].Type = VolumePersistent
		}
	}
}

// Check adds every mistake of s, but for what follows from one that p has: that
// a part of s could not be read. It expects defaults to be filled in. Whether
// there is such an image only a node knows.
func (s *Sandbox) Check(p *Problems) {
	s.Metadata.Check(p)
	s.Spec.Runtime.check(p)
	s.Spec.Lifecycle.check(p)
	checkAttachments(p, s.Spec.Volumes)
	if s.Spec.VPC != "" {
		CheckName(p, "spec.vpc", s.Spec.VPC)
	}
	s.Spec.Network.check(p)
}

func (r *Runtime) check(p *Problems) {
	if r.Memory < MemoryMin || r.Memory > MemoryMax {
		p.Add("spec.runtime.memory", "is %d; it must be %d to %d megabytes", r.Memory, MemoryMin, MemoryMax)
	}
	if r.Storage != 0 && (r.Storage < StorageMin || r.Storage > StorageMax) {
		p.Add("spec.runtime.storage", "is %d; it must be %d to %d megabytes, or left out for files in memory", r.Storage, StorageMin, StorageMax)
	}
	if r.Grace < 0 || r.Grace > GraceMax {
		p.Add("spec.runtime.terminationGracePeriodSeconds", "is %d; it must be 0 to %d", r.Grace, GraceMax)
	}
	if r.TTL != "" {
		if _, err := ParseDuration(r.TTL); err != nil {
			p.Add("spec.runtime.ttl", "%v", err)
		}
	}
	if r.Expires != "" {
		if _, err := ParseTime(r.Expires); err != nil {
			p.Add("spec.runtime.expires", "%v", err)
		}
	}
	for k, v := range r.ExtraArgs {
		if !slices.Contains(extraArgKeys, k) {
			p.Add("spec.runtime.extraArgs", "has the unknown key %q; known are %s", clip(k), strings.Join(extraArgKeys, ", "))
		} else if v != extraOn && v != extraOff {
			p.Add("spec.runtime.extraArgs."+k, "must be %s or %s", extraOn, extraOff)
		}
	}
	r.checkPorts(p)
	CheckEnvs(p, "spec.runtime.envs", r.Envs)
}

func (r *Runtime) checkPorts(p *Problems) {
	if len(r.Ports) > PortsMax {
		p.Add("spec.runtime.ports", "has %d entries; at most %d are allowed", len(r.Ports), PortsMax)
	}
	unreadable := p.unreadable("spec.runtime.ports")
	for i, port := range r.Ports {
		if unreadable && port == (Port{}) {
			continue
		}
		field := fmt.Sprintf("spec.runtime.ports[%d]", i)
		if port.Target < 1 || port.Target > 65535 {
			p.Add(field+".target", "is %d; it must be 1 to 65535", port.Target)
		}
		if port.Protocol != "" && !slices.Contains(portProtocols, port.Protocol) {
			p.Add(field+".protocol", "is %q; it must be one of %s, or be left out, which is %s", clip(port.Protocol), strings.Join(portProtocols, ", "), portProtocols[0])
		}
	}
}

// CheckEnvs adds the mistakes in variables, which are in a field of a body.
func CheckEnvs(p *Problems, field string, envs []Env) {
	if len(envs) > EnvsMax {
		p.Add(field, "has %d entries; at most %d are allowed", len(envs), EnvsMax)
	}
	bytes, unreadable := 0, p.unreadable(field)
	for _, e := range envs {
		bytes += len(e.Name) + len(e.Text()) + len(e.ValueFrom)
		if (e.Name != "" || !unreadable) && !envNameForm.MatchString(e.Name) {
			p.Add(field, "has the name %q; it must have letters, digits, _, . and - only, and begin with a letter or _", clip(e.Name))
		}
		if e.From() {
			if _, err := ParseValueSource(e.ValueFrom); err != nil {
				p.Add(field, "%s.valueFrom %v", clip(e.Name), err)
			}
			if e.Text() != "" {
				p.Add(field, "%s has both a value and valueFrom", clip(e.Name))
			}
		}
		if strings.ContainsRune(e.Text(), 0) {
			p.Add(field, "has a NUL byte in the value of %s", clip(e.Name))
		}
	}
	if bytes > EnvBytesMax {
		p.Add(field, "has %d bytes; at most %d are allowed", bytes, EnvBytesMax)
	}
}

// clip bounds what an error message repeats of a caller's input.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
