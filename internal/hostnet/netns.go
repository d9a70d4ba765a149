package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A netns is an open network namespace.
type netns struct {
	file *os.File
}

func (n netns) fd() int { return int(n.file.Fd()) }

func (n netns) Close() error { return n.file.Close() }

// do runs f on a thread inside the namespace. The thread is thrown away, so it
// can never serve anybody else in the wrong place.
func (n netns) do(f func() error) error {
	return apart(func() error {
		if err := unix.Setns(n.fd(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter %s: %w", n.file.Name(), err)
		}
		return f()
	})
}

// apart runs f on a thread that ends with it. The first thread of a process is
// never taken: it cannot end, and /proc/self shows the world as it sees it.
func apart(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			done <- apart(f) // surely on another thread, since this one is held
			runtime.UnlockOSThread()
			return
		}
		done <- f() // and never unlock
	}()
	return <-done
}

// here opens the namespace that this process is in.
func here() (netns, error) {
	f, err := os.Open("/proc/thread-self/ns/net")
	return netns{f}, err
}

// openNetns opens the namespace that is mounted on a file. It is an
// os.ErrNotExist if there is none, as after a restart of the machine.
func openNetns(path string) (netns, error) {
	f, err := os.Open(path)
	if err != nil {
		return netns{}, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return netns{}, errors.Join(err, f.Close())
	}
	if st.Type != unix.NSFS_MAGIC {
		return netns{}, errors.Join(&os.PathError{Op: "open namespace", Path: path, Err: fs.ErrNotExist}, f.Close())
	}
	return netns{f}, nil
}

// newNetns makes a namespace with these settings, and mounts it on a file to
// keep it. The handle speaks to the kernel inside. On an error nothing is left.
func newNetns(path string, settings []sysctl) (ns netns, h *netlink.Handle, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return ns, nil, err
	}
	if err := f.Close(); err != nil {
		return ns, nil, errors.Join(err, os.Remove(path))
	}
	err = apart(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		if err := set(settings); err != nil {
			return err
		}
		if h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("keep the network namespace: %w", err)
		}
		return nil
	})
	if err == nil {
		ns, err = openNetns(path)
	}
	if err != nil {
		if h != nil {
			h.Close()
		}
		return netns{}, nil, errors.Join(err, dropNetns(path))
	}
	return ns, h, nil
}

// dropNetns takes the namespace off a file and removes the file. The namespace
// lives on as long as a process is in it.
func dropNetns(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // nothing is mounted, or nothing is there
		}
		if err != nil {
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// A sysctl is a setting of a namespace, below /proc/sys/net.
type sysctl struct{ key, value string }

// Settings. A new namespace takes its values for IPv4 from the machine, which
// may be a router itself.
var (
	noIPv6 = []sysctl{
		{"ipv6/conf/all/disable_ipv6", "1"},
		{"ipv6/conf/default/disable_ipv6", "1"},
	}
	closedRouter = append([]sysctl{
		{"ipv4/ip_forward", "0"},
		{"ipv4/conf/all/rp_filter", "1"}, // a source address is believed on its own link only
		{"ipv4/conf/default/rp_filter", "1"},
		{"ipv4/conf/all/arp_ignore", "2"}, // say nothing about the other links
		{"ipv4/conf/all/arp_announce", "2"},
		{"ipv4/icmp_ratemask", "0"}, // a packet to nobody is answered each time, so that its sender does not hang
		{"ipv4/conf/all/accept_redirects", "0"},
		{"ipv4/conf/default/accept_redirects", "0"},
		{"ipv4/conf/all/accept_source_route", "0"},
		{"ipv4/conf/all/route_localnet", "0"},
		{"ipv4/conf/default/route_localnet", "0"},
	}, noIPv6...)
)

// set writes settings of the namespace that the calling thread is in. A kernel
// without IPv6 has no need to switch it off.
func set(settings []sysctl) error {
	for _, s := range settings {
		err := os.WriteFile(filepath.Join("/proc/sys/net", s.key), []byte(s.value), 0)
		if errors.Is(err, fs.ErrNotExist) && s.key[:4] == "ipv6" {
			continue
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", s.key, err)
		}
	}
	return nil
}
