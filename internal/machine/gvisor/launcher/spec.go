package launcher

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// Annotations by which gVisor mounts a root file system from an EROFS file,
// with a writable layer in memory above it, without a process that serves
// files.
const (
	annotationSource  = "dev.gvisor.spec.rootfs.source"
	annotationType    = "dev.gvisor.spec.rootfs.type"
	annotationOverlay = "dev.gvisor.spec.rootfs.overlay"
	annotationOptions = "dev.gvisor.spec.rootfs.options"
)

// What a guest may write lives in its memory. Each of its file systems has a share of
// that, and the rest is for its processes. A file that grows without end fills its file
// system and does not end the sandbox.
const (
	shareRoot  = 0.5
	shareTmp   = 0.2
	shareShm   = 0.1
	shareLogs  = 0.1 // what processes print is kept when everything else is full
	tmpfsOwner = "mode=1777"
)

func sizeOption(memory int64, share float64) string {
	return "size=" + strconv.FormatInt(int64(float64(memory)*share), 10)
}

// cpusMin is what a guest sees at least: programs drop locks when they believe
// to be alone on one processor (gVisor uses the same floor).
const cpusMin = 2

// agentPath is the agent's program in every machine.
const agentPath = machine.AgentDir + "/doze-agent"

const filesMax = 1 << 16

// specMax bounds what is read of a spec: it carries one machine's environment.
const specMax = requestMax

// capabilities is what root may do inside: what container engines give by
// default. They hold towards gVisor's kernel, never towards the host's.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// naming is what the first process has besides: it names the host, and gives it
// up before anything else runs.
const naming = "CAP_SYS_ADMIN"

// administrator is what a process has that mounts: a directory may be one that
// only its owner may enter.
var administrator = []string{naming, "CAP_DAC_OVERRIDE"}

// What root may do besides in a machine that is for it.
const (
	administering = "CAP_NET_ADMIN" // links, addresses, routes, rules
	rawSockets    = "CAP_NET_RAW"   // through which rules are read and set; needs a setting of the engine, see settingsFor
)

// everything is what root may do besides all others in a machine with container engines. A
// container that is privileged has all of it, and its engine fails if it cannot pass one on.
var everything = []string{
	administering, rawSockets,
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_BLOCK_SUSPEND", "CAP_BPF", "CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_NET_BROADCAST",
	"CAP_PERFMON", "CAP_SYSLOG", "CAP_SYS_BOOT", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT", "CAP_SYS_RAWIO", "CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
}

// capabilitiesFor is what the first process of a machine may do.
func capabilitiesFor(c gvisor.Config) []string {
	all := append([]string{naming}, capabilities...)
	if c.Containers {
		return append(all, everything...)
	}
	if c.IPTables || c.Tun {
		all = append(all, administering)
	}
	if c.IPTables {
		all = append(all, rawSockets)
	}
	return all
}

// settingsFor is the configuration of the engine of one machine.
func settingsFor(c gvisor.Config, all *config.Config) *config.Config {
	own := *all
	own.EnableRaw = c.IPTables || c.Containers
	own.AllowPacketEndpointWrite = c.Containers // bridges announce addresses
	return &own
}

// specFor is the OCI spec of a machine. Everything but paths, names and
// environment must be the same at every restore.
func specFor(c gvisor.Config, root string) *specs.Spec {
	period, quota := uint64(hostproc.CPUPeriod), int64(math.Ceil(c.CPUs*hostproc.CPUPeriod))
	args := c.Args
	if len(args) == 0 {
		args = []string{agentPath}
	}
	first := capabilitiesFor(c)
	return &specs.Spec{
		Version:  "1.0.2",
		Hostname: c.Hostname,
		Root:     &specs.Root{Path: root},
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: c.Env,
			Capabilities: &specs.LinuxCapabilities{Bounding: first, Effective: first, Permitted: first},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: filesMax, Soft: filesMax}},
		},
		Mounts: append([]specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{tmpfsOwner, sizeOption(c.Memory, shareShm)}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{tmpfsOwner, sizeOption(c.Memory, shareTmp)}},
			{Destination: machine.LogDir, Type: "tmpfs", Source: "tmpfs", Options: []string{sizeOption(c.Memory, shareLogs)}},
			{Destination: machine.AgentDir, Type: "erofs", Source: c.Agent, Options: []string{"ro"}},
		}, append(groupsFor(c), volumesFor(c)...)...),
		Annotations: annotationsFor(c),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: c.Link.NetNS},
			},
			Resources: &specs.LinuxResources{
				Memory:  &specs.LinuxMemory{Limit: &c.Memory},
				CPU:     &specs.LinuxCPU{Period: &period, Quota: &quota},
				Devices: devicesFor(c),
			},
		},
	}
}

// annotationsFor say where the root file system is, and the layer above it.
func annotationsFor(c gvisor.Config) map[string]string {
	all := map[string]string{
		annotationSource:  c.Root,
		annotationType:    "erofs",
		annotationOverlay: "memory",
		annotationOptions: sizeOption(c.Memory, shareRoot),
	}
	if c.Disk > 0 {
		all[annotationOverlay] = "dir=/disk" // the engine opens the file, and there is no such directory
		all[annotationOptions] = sizeOption(c.Disk, 1)
		all[patch.DiskAnnotation] = checkpoint.Disk(c)
	}
	return all
}

// groupsFor are the control groups inside of a machine with container engines. They count
// and limit nothing, but for processes: those of the host do.
func groupsFor(c gvisor.Config) []specs.Mount {
	if !c.Containers {
		return nil
	}
	return []specs.Mount{{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "nodev", "noexec"}}}
}

// volumesFor are the mounts of a machine that are the host's. The engine opens
// their files itself; what may not be written, the host refuses to it too.
func volumesFor(c gvisor.Config) (mounts []specs.Mount) {
	for _, v := range c.Volumes {
		access := "rw"
		if v.ReadOnly {
			access = "ro"
		}
		mounts = append(mounts, specs.Mount{Destination: v.Path, Type: "bind", Source: v.Source, Options: []string{"bind", "nosuid", "nodev", access}})
	}
	return mounts
}

// memoryLimit is what a machine of this spec may be charged for.
func memoryLimit(spec *specs.Spec) int64 {
	return *spec.Linux.Resources.Memory.Limit + gvisor.Overhead // specFor writes it
}

// cpuLimit is its share of the host's processors.
func cpuLimit(spec *specs.Spec) float64 {
	return float64(*spec.Linux.Resources.CPU.Quota) / hostproc.CPUPeriod // specFor writes it
}

// Size tells the engine's process how large its guest is. gVisor reads that from
// cgroups which it makes itself, but here we make them (see configFor). So our main
// puts the numbers of the spec, which the process inherits as an open file, into its
// arguments. It is called before gVisor's own main.
func Size(args []string) []string {
	args = rooted(args)
	spec, ok := inheritedSpec(args)
	if !ok || spec.Linux == nil || spec.Linux.Resources == nil {
		return args
	}
	limits := spec.Linux.Resources
	if limits.Memory != nil && limits.Memory.Limit != nil {
		args = setFlag(args, "--total-memory", strconv.FormatInt(*limits.Memory.Limit, 10))
	}
	if cpu := limits.CPU; cpu != nil && cpu.Quota != nil && *cpu.Quota > 0 {
		n := max(cpusMin, int(math.Ceil(float64(*cpu.Quota)/hostproc.CPUPeriod)))
		args = setFlag(args, "--cpu-num", strconv.Itoa(n))
	}
	return args
}

// rooted takes the rootless mode out of the arguments. The launcher needs it to
// choose the user of the process (see asOwner), but an engine in this mode keeps
// the host's /proc mounted.
func rooted(args []string) []string {
	return slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, "--rootless") })
}

// inheritedSpec reads the spec without moving the file's offset.
func inheritedSpec(args []string) (spec specs.Spec, ok bool) {
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, "--spec-fd=") })
	if i < 0 {
		return spec, false
	}
	number, err := strconv.Atoi(strings.TrimPrefix(args[i], "--spec-fd="))
	if err != nil {
		return spec, false
	}
	// The file is root's, and this process is not: it may read what is open, and
	// not open it again.
	var about unix.Stat_t
	if err := unix.Fstat(number, &about); err != nil || about.Size > specMax {
		return spec, false
	}
	raw := make([]byte, about.Size)
	return spec, readFull(number, raw, 0) == nil && json.Unmarshal(raw, &spec) == nil
}

// setFlag sets a flag of the boot command: in place, if it is there, or right
// behind the command's name.
func setFlag(args []string, name, value string) []string {
	for i, a := range args {
		if a == name && i+1 < len(args) {
			args[i+1] = value
			return args
		}
		if strings.HasPrefix(a, name+"=") {
			args[i] = name + "=" + value
			return args
		}
	}
	if i := slices.Index(args, "boot"); i >= 0 {
		return slices.Insert(args, i+1, name+"="+value)
	}
	return args
}
