// Package instance is one data directory: who may serve it, where its dozed is or
// was, where its records are, its first key, and its end. It runs nothing.
//
// What must always hold: one process at a time serves a data directory, or a run
// directory; a data directory keeps to the kind of records that it began with.
package instance

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/teardown"
)

// Names in a data directory that are not a node's.
const (
	file         = "instance.json" // where its dozed is, or was
	keyFile      = "admin.key"
	sealFile     = "seal.key" // belongs to the database: a backup of one needs the other
	databaseFile = "doze.db"
	recordsFile  = "records" // says where the records are
	lockFile     = "lock"
)

// Names in a data directory that others need.
const (
	NodeFile = "node.id" // of what a node has here
	FleetDir = "fleet"   // certificates of the roles
)

// HistoryDir, in the data directory, has what the platform did and took.
const HistoryDir = "history"

// Names of what dozed backup and dozed restore have in a data directory.
const (
	BackupDir      = "backup"               // copies for a backup that is under way
	RestoreDir     = "restore"              // what is being restored
	RestoredConfig = "restored.config.json" // the configuration of the platform that was restored
)

// Keys are the names of the keys in a data directory, and of what says who it is. A backup
// has them.
func Keys() []string { return []string{sealFile, keyFile, host.EgressFile, NodeFile, FleetDir} }

// ours is everything that dozed makes in a data directory.
var ours = append([]string{
	keyFile, "agents", "builders", "builds", databaseFile, databaseFile + "-shm", databaseFile + "-wal", host.EgressFile, "engines", "images", file, host.LogsDir, HistoryDir, "net", recordsFile, "sandboxes", sealFile, "snapshots", "ahead", "away", "foreign", "leased",
	"swap", "swap.zram", "volumes", BackupDir, RestoreDir, RestoredConfig, NodeFile, FleetDir,
}, LockFiles()...)

// Instance says to others on this host where the dozed of a data directory is, or
// was. The command line client reads it too.
type Instance struct {
	Address string `json:"address"` // URL by which this host reaches it
	Run     string `json:"run"`     // directory of run state
	Cgroup  string `json:"cgroup"`  // name of the parent of its cgroups
}

// Announce writes down where the dozed of a data directory is.
func Announce(data string, i Instance) error {
	raw, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(data, file), append(raw, '\n'), 0o600)
}

// Served reports whether a dozed ever had a directory for its data.
func Served(data string) bool {
	return slices.ContainsFunc([]string{file, databaseFile}, func(name string) bool {
		_, err := os.Stat(filepath.Join(data, name))
		return err == nil
	})
}

// Remains finds what the last dozed of a data directory left, wherever its settings
// had put it. Without an announcement it is where i says.
func Remains(data string, i Instance) (teardown.Platform, error) {
	raw, err := os.ReadFile(filepath.Join(data, file))
	if err == nil {
		err = json.Unmarshal(raw, &i)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // older ones had no such file
		return teardown.Platform{}, fmt.Errorf("read where it ran: %w", err)
	}
	if !filepath.IsAbs(i.Run) || !teardown.ValidGroup(i.Cgroup) {
		return teardown.Platform{}, doze.Errorf(doze.Invalid, "%s is damaged: remove it, and give --run and --cgroup as dozed all had them", filepath.Join(data, file))
	}
	return teardown.Platform{Run: filepath.Clean(i.Run), Cgroup: i.Cgroup, Data: data, Programs: host.Processes()}, nil
}

// Lock makes directories and makes sure that one process at a time serves them. It
// locks all of them, or none.
func Lock(dirs ...string) (unlock func(), err error) {
	return lockAll(dirs, func(dir string) ([]*os.File, error) {
		f, err := lock(dir, lockFile, unix.LOCK_EX)
		return []*os.File{f}, err
	})
}

// LockRole makes directories and makes sure that one process at a time has a role in
// them. Processes of other roles may share them; one of all roles may not.
func LockRole(role string, dirs ...string) (unlock func(), err error) {
	return lockAll(dirs, func(dir string) ([]*os.File, error) {
		shared, err := lock(dir, lockFile, unix.LOCK_SH)
		if err != nil {
			return nil, err
		}
		own, err := lock(dir, lockFile+"."+role, unix.LOCK_EX)
		if err != nil {
			return nil, errors.Join(err, shared.Close())
		}
		return []*os.File{shared, own}, nil
	})
}

// Roles are those that processes of their own have in a data directory now.
func Roles(data string) (roles []string) {
	for _, r := range mtls.Roles {
		f, err := os.Open(filepath.Join(data, lockFile+"."+string(r)))
		if err != nil {
			continue // nobody has ever had it
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			roles = append(roles, string(r))
		}
		_ = f.Close() // gives the lock back
	}
	return roles
}

func lockAll(dirs []string, lock func(dir string) ([]*os.File, error)) (unlock func(), err error) {
	var locked []*os.File
	unlock = func() {
		for _, f := range slices.Backward(locked) {
			_ = f.Close()
		}
	}
	for _, dir := range dirs {
		files, err := lock(dir)
		if err != nil {
			unlock()
			return nil, err
		}
		locked = append(locked, files...)
	}
	return unlock, nil
}

func lock(dir, name string, how int) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err != nil {
		return nil, errors.Join(doze.Errorf(doze.Conflict, "another dozed serves %s", dir), f.Close())
	}
	return f, nil
}

// NodeID returns the identity of what a node has in a data directory, which the first
// call makes. It stays for ever.
func NodeID(data string) (string, error) {
	file := filepath.Join(data, NodeFile)
	raw, err := os.ReadFile(file)
	id := strings.TrimSpace(string(raw))
	switch {
	case err == nil && id == "":
		return "", fmt.Errorf("%s is damaged: restore it, or have control forget its node", file)
	case !errors.Is(err, fs.ErrNotExist):
		return id, err
	}
	id = strings.ToLower(rand.Text())
	return id, durable.Replace(file, []byte(id+"\n"), 0o600)
}

// KnownNode is NodeID for a caller that only looks. It is empty if there is none.
func KnownNode(data string) string {
	raw, err := os.ReadFile(filepath.Join(data, NodeFile))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

// RestoreMark is a file that is there while dozed restore is at work in a data directory.
func RestoreMark(data string) string { return filepath.Join(data, RestoreDir, "mark") }

// CutShort is a Conflict if a data directory has a part of a backup: dozed restore was killed.
func CutShort(data string) error {
	if _, err := os.Lstat(RestoreMark(data)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return doze.Errorf(doze.Conflict, "a restore into %s was cut short: run dozed restore again", data)
}

// LockFile is what the process that serves a data directory locks.
func LockFile(data string) string { return filepath.Join(data, lockFile) }

// LockFiles are the names of all files that processes lock in a data directory. They have nothing.
func LockFiles() []string {
	names := []string{lockFile}
	for _, r := range mtls.Roles {
		names = append(names, lockFile+"."+string(r))
	}
	return names
}

// DatabaseFile is where the records are if they are in a file.
func DatabaseFile(data string) string { return filepath.Join(data, databaseFile) }

// SealFile is where the key is that secrets in the records are sealed with.
func SealFile(data string) string { return filepath.Join(data, sealFile) }

// EgressFile is where the key is that opens secrets of routing rules.
func EgressFile(data string) string { return filepath.Join(data, host.EgressFile) }

// KeyFile is where the first key is.
func KeyFile(data string) string { return filepath.Join(data, keyFile) }

// SaveKey writes the first key to where root finds it again. It outlasts a loss of
// power: a key that is recorded and in no file would lock everybody out.
func SaveKey(data, key string) error {
	return durable.Replace(filepath.Join(data, keyFile), []byte(key+"\n"), 0o600)
}
