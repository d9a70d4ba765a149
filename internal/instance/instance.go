// Package instance is one data directory: who may serve it, where its dozed is or
// was, where its records are, its first key, and its end. It runs nothing.
//
// What must always hold: one process at a time serves a data directory, or a run
// directory; a data directory keeps to the kind of records that it began with.
package instance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
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

// ours is everything that dozed makes in a data directory.
var ours = []string{
	keyFile, "agents", databaseFile, databaseFile + "-shm", databaseFile + "-wal", host.EgressFile, "engines", "images", file, lockFile, "net", recordsFile, "sandboxes", sealFile, "snapshots", "ahead",
	"swap", "swap.zram", "volumes",
}

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
	return teardown.Platform{Run: filepath.Clean(i.Run), Cgroup: i.Cgroup, Data: data}, nil
}

// Lock makes directories and makes sure that one process at a time serves them. It
// locks all of them, or none.
func Lock(dirs ...string) (unlock func(), err error) {
	var locked []*os.File
	unlock = func() {
		for _, f := range slices.Backward(locked) {
			_ = f.Close()
		}
	}
	for _, dir := range dirs {
		f, err := lock(dir)
		if err != nil {
			unlock()
			return nil, err
		}
		locked = append(locked, f)
	}
	return unlock, nil
}

func lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(doze.Errorf(doze.Conflict, "another dozed serves %s", dir), f.Close())
	}
	return f, nil
}

// SealFile is where the key is that secrets in the records are sealed with.
func SealFile(data string) string { return filepath.Join(data, sealFile) }

// KeepKey writes the first key to where root finds it again. It outlasts a loss of
// power: a key that is recorded and in no file would lock everybody out.
func KeepKey(data, key string) error {
	return durable.Replace(filepath.Join(data, keyFile), []byte(key+"\n"), 0o600)
}
