package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dozehq/doze/internal/fleet"
)

// Saved returns the ids of the machines of all sandboxes in the directory of a node that is
// not open, by UID, and what [Node.Held] says of them. A record that cannot be read has the UID
// for its machine, and is left out of held.
func Saved(dir string) (machines map[string]string, held map[string]fleet.Held, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	machines, held = map[string]string{}, map[string]fleet.Held{}
	for _, e := range entries {
		uid := e.Name()
		if !e.IsDir() || !idPattern.MatchString(uid) || hidden(uid) {
			continue
		}
		machines[uid] = uid
		r, err := readRecord(filepath.Join(dir, uid), uid)
		if err != nil {
			continue
		}
		held[uid] = fleet.Held{Epoch: r.Order.Epoch, Workspace: r.Order.Workspace, Name: r.Order.Name}
		if r.Config.ID != "" {
			machines[uid] = r.Config.ID
		}
	}
	return machines, held, nil
}

// Absent returns all sandboxes in the directory of a node that is not open, by UID, and whether
// their memory is in the bucket alone. One with a damaged record is there: it fails as it is.
func Absent(dir string) (map[string]bool, error) {
	saved, _, err := Saved(dir)
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for uid := range saved {
		r, err := readRecord(filepath.Join(dir, uid), uid)
		switch {
		case errors.Is(err, errDamaged):
			all[uid] = false
		case err != nil:
			return nil, err
		case r.Order.UID != "": // else it is a leftover
			all[uid] = r.Absent != nil
		}
	}
	return all, nil
}

// Disown removes the records of sandboxes in the directory of a node that is not open:
// other nodes have them. Open removes what is left of them.
func Disown(dir string, uids []string) error {
	n := Node{Options: Options{Dir: dir}}
	var errs []error
	for _, uid := range uids {
		if idPattern.MatchString(uid) {
			errs = append(errs, n.forget(uid))
		}
	}
	return errors.Join(errs...)
}
