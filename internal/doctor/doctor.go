// Package doctor looks at a host and says in plain words what it lacks for
// running sandboxes. It changes nothing, unless it is asked to.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/hostnet"
	"github.com/dozehq/doze/internal/swap"
)

// What a host should have at least. Less is a warning: it works, for fewer
// sandboxes.
const (
	memoryWanted = 2 << 30
	diskWanted   = 10 << 30
	filesWanted  = 65536
	mapsWanted   = 262144
)

// Kernel settings that make a difference.
const (
	mapsFile = "/proc/sys/vm/max_map_count"
	hugeFile = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
)

// Verdict is how a check ended.
type Verdict uint8

// A host with a Missing cannot run sandboxes; one with an Advice can.
const (
	Fine Verdict = iota
	Advice
	Missing
)

var verdicts = [...]string{Fine: "ok", Advice: "note", Missing: "MISSING"}

func (v Verdict) String() string { return verdicts[v] }

// Finding is the result of one check.
type Finding struct {
	Check   string
	Verdict Verdict
	Text    string   // what is there
	Remedy  string   // what to do about it; empty if Fine
	Fix     *Setting // what does it, until the next reboot; nil if that is not ours to do
}

// Setting is a value of the kernel's in a file.
type Setting struct{ File, Value string }

// Apply writes the value and returns the setting that takes it back.
func (s Setting) Apply() (undo Setting, err error) {
	old, err := os.ReadFile(s.File)
	if err != nil {
		return Setting{}, err
	}
	return Setting{s.File, chosen(string(old))}, os.WriteFile(s.File, []byte(s.Value), 0)
}

// chosen returns the value that is in force where a file shows all it knows, as
// in "always [madvise] never".
func chosen(text string) string {
	if _, rest, ok := strings.Cut(text, "["); ok {
		text, _, _ = strings.Cut(rest, "]")
	}
	return strings.TrimSpace(text)
}

// Host is what is looked at.
type Host struct {
	Data     string            // the data directory, or where it will be
	Binaries []string          // paths of our own binaries
	Pool     []netip.Prefix    // addresses for egress IPs
	Link     string            // network interface that they belong to
	Swap     swap.Plan         // what sandboxes get, or would
	Proxy    Prober            // the proxy through which this host reaches public addresses; nil: none
	Plain    string            // address at which others reach dozed by plain HTTP; empty: none
	Measure  func() []Platform // what a system call takes on each platform, the one in use first; nil: nobody measures
	Fleet    []Certificate     // those of roles that have a directory here
	Unfound  string            // domain of sandboxes that this host's programs do not find; empty: none
}

// Certificate is one by which a role of a fleet is known to the others.
type Certificate struct {
	Role string
	Ends time.Time
	Soon bool  // it ends soon, and nobody renews it
	Err  error // why the role would not start with it; nil if it would
}

// Platform is a way to intercept the system calls of sandboxes.
type Platform struct {
	Name string
	Took time.Duration // for one call
	Err  error         // why it does not work on this host; nil if it does
}

// reach is where a check can run.
type reach uint8

// A process that runs sandboxes does all checks but those apart.
const (
	sandboxes reach = iota // about what only sandboxes need
	always                 // about every process of the platform
	apart                  // it makes a namespace, or dozed does not start where it fails
)

// checks is everything that is looked at.
var checks = []struct {
	name  string
	look  func(Host) (Verdict, string, string)
	fix   *Setting
	reach reach
}{
	{"user", root, nil, sandboxes},
	{"processor", processor, nil, always},
	{"kernel", kernel, nil, always},
	{"cgroups", cgroups, nil, sandboxes},
	{"network", network, nil, apart},
	{"egress pool", egressPool, nil, sandboxes},
	{"upstream proxy", upstreamProxy, nil, sandboxes},
	{"programs", programs, nil, sandboxes},
	{"our binaries", binaries, nil, sandboxes},
	{"memory", memory, nil, sandboxes},
	{"disk", disk, nil, sandboxes},
	{"files on disk", filesOnDisk, nil, sandboxes},
	{"volumes", volumes, nil, sandboxes},
	{"open files", openFiles, nil, always},
	{"memory maps", memoryMaps, &Setting{mapsFile, strconv.Itoa(mapsWanted)}, sandboxes},
	{"swap", hostSwap, nil, sandboxes},
	{"swap limits", swapLimits, nil, sandboxes},
	{"huge pages", hugePages, &Setting{hugeFile, "never"}, sandboxes},
	{"KVM", kvm, nil, sandboxes},
	{"encryption", encryption, nil, sandboxes},
	{"local names", localNames, nil, sandboxes},
	{"certificates", certificates, nil, apart},
}

// Examine runs all checks.
func Examine(h Host) []Finding { return examine(h, func(reach) bool { return true }) }

// Running runs the checks that suit a process that serves, and that changes nothing by
// them. Without sandboxes, it runs those about every process of the platform.
func Running(h Host, withSandboxes bool) []Finding {
	return examine(h, func(r reach) bool { return r == always || withSandboxes && r == sandboxes })
}

func examine(h Host, suits func(reach) bool) []Finding {
	var found []Finding
	for _, c := range checks {
		if !suits(c.reach) {
			continue
		}
		v, text, remedy := c.look(h)
		f := Finding{Check: c.name, Verdict: v, Text: text, Remedy: remedy}
		if v != Fine {
			f.Fix = c.fix
		}
		found = append(found, f)
	}
	return found
}

// Print writes findings for people and reports whether sandboxes can run.
func Print(w io.Writer, found []Finding) (usable bool) {
	usable = true
	for _, f := range found {
		fmt.Fprintf(w, "%-8s %-13s %s\n", f.Verdict, f.Check, f.Text)
		if f.Remedy != "" {
			fmt.Fprintf(w, "%-8s %-13s → %s\n", "", "", f.Remedy)
		}
		usable = usable && f.Verdict != Missing
	}
	return usable
}

// Lacking returns the findings without which no sandbox can run.
func Lacking(found []Finding) (missing []Finding) {
	for _, f := range found {
		if f.Verdict == Missing {
			missing = append(missing, f)
		}
	}
	return missing
}

// Visit is one call of the doctor.
type Visit struct {
	Apply bool   // change the settings of the kernel that are advised
	Only  string // with Apply: the one of this check alone
}

// Bind adds the flags that only dozed doctor has.
func (v *Visit) Bind(flags *flag.FlagSet) {
	flags.BoolVar(&v.Apply, "apply", false, "change kernel settings as advised, until the next reboot")
	flags.StringVar(&v.Only, "only", "", "with --apply: change only what this `check` advises, such as \"huge pages\"")
}

// Do looks at a host, changes what it may, and prints what it found.
func (v Visit) Do(w io.Writer, look func() Host) error {
	found := Examine(look())
	if v.Apply {
		if err := fix(w, found, v.Only); err != nil {
			return err
		}
		found = Examine(look())
	}
	if !Print(w, found) {
		return errors.New("this host cannot run sandboxes yet")
	}
	fmt.Fprintln(w, "\nThis host can run sandboxes.")
	return nil
}

// fix changes the settings of the kernel that are advised, or the one of the check
// that is named, and says how to take that back.
func fix(w io.Writer, found []Finding, only string) error {
	for _, f := range found {
		if f.Fix == nil || only != "" && f.Check != only {
			continue
		}
		undo, err := f.Fix.Apply()
		if err != nil {
			return fmt.Errorf("%s: %w", f.Check, err)
		}
		fmt.Fprintf(w, "changed: %s, until the next reboot; to undo: echo %s > %s\n", f.Check, undo.Value, undo.File)
	}
	return nil
}

func root(Host) (Verdict, string, string) {
	if os.Geteuid() == 0 {
		return Fine, "running as root", ""
	}
	return Missing, "not running as root", "start dozed as root: it makes namespaces, cgroups and mounts; sandboxes themselves run without rights on the host"
}

func processor(Host) (Verdict, string, string) {
	if runtime.GOARCH == "amd64" {
		return Fine, fmt.Sprintf("%s, %d CPUs", runtime.GOARCH, runtime.NumCPU()), ""
	}
	return Advice, runtime.GOARCH, "this build is tested on amd64 only"
}

func kernel(Host) (Verdict, string, string) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Missing, err.Error(), "run dozed on Linux"
	}
	release := unix.ByteSliceToString(u.Release[:])
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	if a < 5 || a == 5 && b < 10 {
		return Missing, "Linux " + release, "use Linux 5.10 or newer"
	}
	return Fine, "Linux " + release, ""
}

func cgroups(Host) (Verdict, string, string) {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return Missing, "no /sys/fs/cgroup", "mount cgroups: memory and processor limits need them"
	}
	var have []string
	version := "v1"
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		version = "v2"
		raw, _ := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
		have = strings.Fields(string(raw))
	} else {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/*") // the pattern is well formed
		for _, d := range dirs {
			have = append(have, filepath.Base(d))
		}
	}
	var lacking []string
	for _, want := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(have, want) {
			lacking = append(lacking, want)
		}
	}
	if len(lacking) > 0 {
		return Missing, version + " without " + strings.Join(lacking, ", "), "enable these controllers (kernel parameter cgroup_enable=memory, or systemd's Delegate=)"
	}
	return Fine, version + " with memory, cpu and pids", ""
}

func network(Host) (Verdict, string, string) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return Missing, "no netfilter", "load the kernel module nf_tables: the rules around every sandbox need it"
	}
	if err := unix.Close(fd); err != nil {
		return Missing, err.Error(), "look at the kernel's log"
	}
	if _, err := os.Stat("/proc/self/ns/net"); err != nil {
		return Missing, "no network namespaces", "use a kernel with CONFIG_NET_NS"
	}
	lacking, err := hostnet.Lacking()
	if errors.Is(err, unix.EPERM) {
		return Advice, "network namespaces and netfilter; rules were not tried", "run the doctor as root: it tries them in a network namespace of its own"
	}
	if err != nil {
		return Missing, err.Error(), "allow network namespaces: each sandbox has one"
	}
	if len(lacking) > 0 {
		return Missing, "netfilter without " + strings.Join(lacking, ", "), "load these kernel modules (modprobe), or use a kernel that has them: the rules around every sandbox need them"
	}
	return Fine, "network namespaces, and all rules that are needed", ""
}

// egressPool looks whether what is sent to the addresses of the pool reaches this
// host.
func egressPool(h Host) (Verdict, string, string) {
	if len(h.Pool) == 0 {
		return Fine, "none: egress IPs get no address", ""
	}
	link, err := net.InterfaceByName(h.Link)
	if err != nil {
		return Advice, fmt.Sprintf("there is no network interface %q", h.Link), "name the one that the addresses of --egress-pool belong to with --egress-interface: until then, what must leave from them is closed"
	}
	addresses, err := link.Addrs()
	if err != nil {
		return Advice, err.Error(), "look at the addresses of " + h.Link + " yourself"
	}
	var far []string
	for _, p := range h.Pool {
		if !slices.ContainsFunc(addresses, func(a net.Addr) bool { return holds(a, p) }) {
			far = append(far, p.String())
		}
	}
	if len(far) > 0 {
		return Advice, strings.Join(far, ", ") + " is in no network of " + h.Link, "have the network route it to this host, or take it out of --egress-pool: answers do not arrive otherwise"
	}
	return Fine, fmt.Sprintf("in the networks of %s", h.Link), ""
}

// A Prober is a proxy that says whether it answers.
type Prober interface {
	fmt.Stringer
	Probe(ctx context.Context) error
}

// proxyTime is how long the proxy may take. It looks for a name that nobody has.
const proxyTime = 4 * time.Second

// upstreamProxy asks the proxy for a tunnel to nowhere.
func upstreamProxy(h Host) (Verdict, string, string) {
	if h.Proxy == nil {
		return Fine, "none: public addresses are reached without one", ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), proxyTime) //nolint:forbidigo // a check has no caller that ends
	defer cancel()
	if err := h.Proxy.Probe(ctx); err != nil {
		return Advice, fmt.Sprintf("%v: %v", h.Proxy, err), "look at the proxy and at its credentials in --upstream-proxy-file: sandboxes and pulls of images reach nothing without it"
	}
	return Fine, fmt.Sprintf("%v answers", h.Proxy), ""
}

// holds reports whether all of p is in the network that an interface has with a.
func holds(a net.Addr, p netip.Prefix) bool {
	network, err := netip.ParsePrefix(a.String())
	return err == nil && network.Bits() <= p.Bits() && network.Contains(p.Addr())
}

// lacking returns which of some programs are not there.
func lacking(programs ...string) (names []string) {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			names = append(names, p)
		}
	}
	return names
}

// volumes looks for what only volumes need.
func volumes(Host) (Verdict, string, string) {
	if lacking := lacking("mkfs.ext4", "e2fsck", "resize2fs"); len(lacking) > 0 {
		return Advice, strings.Join(lacking, " and ") + " not found: there are no volumes", "apt-get install e2fsprogs"
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return Advice, "no loop devices: there are no volumes", "modprobe loop; in a container, pass /dev/loop-control and /dev/loop0 on"
	}
	return Fine, "loop devices and e2fsprogs", ""
}

func programs(Host) (Verdict, string, string) {
	if lacking := lacking("mmdebstrap", "mkfs.erofs"); len(lacking) > 0 {
		return Missing, strings.Join(lacking, " and ") + " not found", "apt-get install mmdebstrap erofs-utils: images are made with them"
	}
	return Fine, "mmdebstrap and mkfs.erofs", ""
}

func binaries(h Host) (Verdict, string, string) {
	var names []string
	for _, b := range h.Binaries {
		names = append(names, filepath.Base(b))
	}
	all := strings.Join(names, " and ")
	for _, b := range h.Binaries {
		if info, err := os.Stat(b); err != nil || info.Mode()&0o111 == 0 {
			return Missing, b + " not found", "put " + all + " beside dozed (make build does), or in ../lib/doze (packages do)"
		}
	}
	return Fine, "found " + strings.Join(h.Binaries, " and "), ""
}

func memory(Host) (Verdict, string, string) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Advice, err.Error(), "check the memory yourself"
	}
	total := info.Totalram * uint64(info.Unit)
	if total < memoryWanted {
		return Advice, gib(total), "with less than 2 GiB only a few small sandboxes fit"
	}
	return Fine, gib(total), ""
}

// fileSystem is that of the data directory, or where it will be.
func fileSystem(h Host) (st unix.Statfs_t, err error) {
	dir := h.Data
	err = unix.Statfs(dir, &st)
	for errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		err = unix.Statfs(dir, &st)
	}
	return st, err
}

func disk(h Host) (Verdict, string, string) {
	st, err := fileSystem(h)
	if err != nil {
		return Missing, err.Error(), "choose a data directory that can be read"
	}
	if st.Flags&unix.MS_NOEXEC != 0 {
		return Missing, h.Data + " is mounted noexec", "choose a data directory elsewhere, or mount it with exec: the engine is started out of it"
	}
	free := st.Bavail * uint64(st.Bsize) //nolint:gosec // G115: a block size is positive
	if free < diskWanted {
		return Advice, gib(free) + " free for " + h.Data, "a sleeping sandbox takes as much disk as it used memory; the platform images take 1 GiB"
	}
	return Fine, gib(free) + " free for " + h.Data, ""
}

// filesOnDisk says what a checkpoint costs of a sandbox that has its files on disk.
func filesOnDisk(h Host) (Verdict, string, string) {
	st, err := fileSystem(h)
	if err != nil {
		return Advice, err.Error(), "choose a data directory that can be read"
	}
	if st.Type == unix.XFS_SUPER_MAGIC || st.Type == unix.BTRFS_SUPER_MAGIC {
		return Fine, "checkpoints of sandboxes with storage share the blocks of their files", ""
	}
	return Fine, "checkpoints of sandboxes with storage copy their files. With --data on XFS or Btrfs, they would share blocks", ""
}

func openFiles(Host) (Verdict, string, string) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Max < filesWanted {
		return Advice, fmt.Sprintf("at most %d", limit.Max), fmt.Sprintf("raise the limit (ulimit -Hn %d, or systemd's LimitNOFILE=) for more than a few hundred sandboxes", filesWanted)
	}
	return Fine, fmt.Sprintf("at most %d", limit.Max), ""
}

func memoryMaps(Host) (Verdict, string, string) {
	n := number(mapsFile)
	if n < mapsWanted {
		return Advice, fmt.Sprintf("vm.max_map_count is %d", n), fmt.Sprintf("sysctl -w vm.max_map_count=%d, or large sandboxes may fail to map memory", mapsWanted)
	}
	return Fine, fmt.Sprintf("vm.max_map_count is %d", n), ""
}

// hostSwap tells what dozed chose, or would choose.
func hostSwap(h Host) (Verdict, string, string) {
	plan := h.Swap
	if plan == (swap.Plan{}) || !plan.Some() {
		return Advice, "none: " + cmp.Or(plan.Why, "nobody looked"), swap.Cost + ": add some to the host, load the kernel module zram, or install cryptsetup, and use --swap " + swap.Auto +
			"; --swap " + swap.Plain + " makes a file that everyone with access to the disk can read"
	}
	text := plan.Kind
	if plan.Bytes > 0 {
		text += fmt.Sprintf(", %d MB", plan.Bytes>>20)
	}
	return Fine, text + ": " + plan.Why, ""
}

// swapLimits looks whether what a sandbox has in swap counts against its limit.
func swapLimits(Host) (Verdict, string, string) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return Fine, "what is in swap comes on top of the memory of a sandbox; it is only what was moved there while it slept", ""
	}
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"); err != nil {
		return Advice, "none", "with swap, a sandbox gets more than its memory; boot with swapaccount=1"
	}
	return Fine, "memory and swap are limited together", ""
}

// hugePages looks at huge pages for shared memory. They make wakes from disk faster,
// but the engine itself then takes a guest's memory from the kernel. At the memory
// limit the kernel kills the engine.
func hugePages(Host) (Verdict, string, string) {
	raw, err := os.ReadFile(hugeFile)
	if err != nil || strings.Contains(string(raw), "[never]") || strings.Contains(string(raw), "[deny]") {
		return Fine, "off for shared memory", ""
	}
	return Advice, "on for shared memory", "a process that takes all memory ends its sandbox and not only itself; to change that: echo never > " + hugeFile
}

// kvmDevice is how programs reach KVM.
const kvmDevice = "/dev/kvm"

// kvm compares the platforms, where there is KVM. Nothing needs it.
func kvm(h Host) (Verdict, string, string) {
	if _, err := os.Stat(kvmDevice); err != nil {
		return Fine, "not needed, and not here", ""
	}
	if h.Measure == nil {
		return Fine, "not needed", ""
	}
	return Fine, "not used: " + compared(h.Measure()), ""
}

// compared says what a system call takes on platforms, next to the first one.
func compared(all []Platform) string {
	var texts []string
	for i, p := range all {
		switch {
		case p.Err != nil:
			texts = append(texts, fmt.Sprintf("%s does not work here: %v", p.Name, p.Err))
		case i == 0 || all[0].Err != nil || p.Took <= 0:
			texts = append(texts, fmt.Sprintf("a system call takes %v with %s", p.Took, p.Name))
		default:
			texts = append(texts, fmt.Sprintf("%v with %s, %.1f times as fast", p.Took, p.Name, float64(all[0].Took)/float64(p.Took)))
		}
	}
	return strings.Join(texts, "; ")
}

// encryption looks whether keys and tokens reach this host in the clear.
func encryption(h Host) (Verdict, string, string) {
	if h.Plain == "" {
		return Fine, "nobody else reaches dozed by plain HTTP", ""
	}
	return Advice, "keys and tokens are not encrypted on the way to " + h.Plain, "use --tls-cert or --acme, unless something in front does it"
}

// localNames looks whether programs of this host find the sandboxes.
func localNames(h Host) (Verdict, string, string) {
	if h.Unfound == "" {
		return Fine, "sandboxes have no names that this host does not find", ""
	}
	return Advice, "programs that ask the system, as node and python do, do not find names below " + h.Unfound + "; browsers and curl do",
		"apt-get install libnss-myhostname, or start dozed without --domain"
}

// certificates looks at those of a fleet. A role says the rest when it starts.
func certificates(h Host) (Verdict, string, string) {
	if len(h.Fleet) == 0 {
		return Fine, "none: no role of a fleet has one here", ""
	}
	var good, wrong []string
	advice := "dozed certificates makes new ones of the same authority: copy them to their hosts, the key first"
	for _, c := range h.Fleet {
		switch {
		case c.Err != nil:
			wrong = append(wrong, c.Err.Error())
			advice = "the role does not start with it"
		case c.Soon:
			wrong = append(wrong, fmt.Sprintf("that of %s ends at %s, and nobody renews it", c.Role, c.Ends.UTC().Format(time.DateOnly)))
		default:
			good = append(good, fmt.Sprintf("%s until %s", c.Role, c.Ends.UTC().Format(time.DateOnly)))
		}
	}
	if len(wrong) > 0 {
		return Advice, strings.Join(wrong, "; "), advice
	}
	return Fine, strings.Join(good, ", "), ""
}

func number(name string) int64 {
	raw, err := os.ReadFile(name)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	return n
}

func gib(bytes uint64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }
