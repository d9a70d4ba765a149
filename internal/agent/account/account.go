// Package account finds out who the user is that an image names: the ids, groups
// and home that commands run with.
package account

import (
	"bufio"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/mistake"
)

// accountsMax bounds what is read of a user database. Those of images have a
// few kilobytes; the file may be anything.
const accountsMax = 1 << 20

// defaultHome is the home of root if the image does not say.
const defaultHome = "/root"

// User is whom commands and terminals run as, and who owns the files that
// callers make: the USER of the image.
type User struct {
	user string // a name or an id, with an optional :group; empty means the agent's own user
	etc  string // directory of passwd and group
}

// New returns the user that an image names.
func New(user string) User { return User{user: user, etc: "/etc"} }

// Account is a user as the kernel knows it.
type Account struct {
	UID, GID uint32
	groups   []uint32
	home     string
}

// Self reports whether the workload runs as the agent does.
func (w User) Self() bool { return w.user == "" || w.user == "root" || w.user == "0" }

// Lookup looks the user up, with the rules of container engines. A number is an id,
// even if no user has it. The groups that list the user count, unless the image names a
// group. It reads the files every time, since they may change. The error is
// Unprocessable and names the unknown user or group.
func (w User) Lookup() (Account, error) {
	user, group, _ := strings.Cut(w.user, ":")
	id, numeric := parseID(cmp.Or(user, "0"))
	a, name := Account{UID: id, home: "/"}, ""
	err := w.each("passwd", func(f []string) bool { // name:password:uid:gid:comment:home:shell
		uid, ok := parseID(field(f, 2))
		gid, okGroup := parseID(field(f, 3))
		if !ok || !okGroup || numeric && uid != id || !numeric && f[0] != user {
			return true
		}
		name, a.UID, a.GID = f[0], uid, gid
		if home := field(f, 5); filepath.IsAbs(home) {
			a.home = home
		}
		return false
	})
	if name == "" && !numeric {
		return Account{}, w.unknown(user, "passwd", err)
	}
	if group == "" && name == "" {
		return a, nil // an id that nobody has is in no group but 0
	}
	if id, numeric := parseID(group); numeric {
		a.GID = id
		return a, nil
	}
	found := group == ""
	err = w.each("group", func(f []string) bool { // name:password:gid:members
		gid, ok := parseID(field(f, 2))
		switch {
		case !ok:
		case group == "" && slices.Contains(strings.Split(field(f, 3), ","), name):
			a.groups = append(a.groups, gid)
		case group != "" && f[0] == group:
			a.GID, found = gid, true
			return false
		}
		return true
	})
	if !found {
		return Account{}, w.unknown(group, "group", err)
	}
	return a, nil
}

// unknown is the error for a name that is not in a file.
func (w User) unknown(name, file string, err error) error {
	return doze.Wrap(err, doze.Unprocessable, "the image wants to run as the user %q, and %q is not in the sandbox's /etc/%s", mistake.Clip(w.user), mistake.Clip(name), file)
}

// each calls take with the fields of every line of a file, until it has seen
// enough. Without the file there are no lines.
func (w User) each(file string, take func(fields []string) bool) error {
	// A pipe in its place must not block the open.
	f, err := os.OpenFile(filepath.Join(w.etc, file), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fs.ErrInvalid)
	}
	lines := bufio.NewScanner(io.LimitReader(f, accountsMax))
	lines.Buffer(nil, accountsMax+1)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && line[0] != '#' && !take(strings.Split(line, ":")) {
			return nil
		}
	}
	return lines.Err()
}

// parseID reads the number of a user or group. The kernel's last one means
// nobody, and container engines take no more than 31 bits.
func parseID(s string) (id uint32, ok bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && n <= math.MaxInt32
}

// field returns the field i of a line, "" without one.
func field(f []string, i int) string {
	if i >= len(f) {
		return ""
	}
	return f[i]
}

// Credential returns what a child is started with; nil means as the agent.
func (w User) Credential() (*syscall.Credential, error) {
	if w.Self() {
		return nil, nil //nolint:nilnil // the kernel's way to say so, too
	}
	a, err := w.Lookup()
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: a.UID, Gid: a.GID, Groups: a.groups}, nil
}

// Home is where the user is at home if the image does not say.
func (w User) Home() string {
	if w.Self() {
		return defaultHome
	}
	if a, err := w.Lookup(); err == nil {
		return a.home
	}
	return "/" // commands are refused; files can still be named
}
