package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

const (
	errNoImage = "there is no such image"
	// visibleImage selects the images i that the workspace $1 has, or that
	// others share with it.
	visibleImage = `(i.workspace = $1 OR EXISTS (SELECT 1 FROM image_shares s WHERE s.workspace = i.workspace AND s.name = i.name AND s.target = $1))`
)

// Images returns those of a workspace and those that others share with it, by
// name. Their workspace is that which has them.
func (s *Store) Images(ctx context.Context, workspace string) ([]doze.Image, error) {
	all, err := collect(ctx, s.read, scanImage, `SELECT i.body FROM images i WHERE `+visibleImage+` ORDER BY i.name`, workspace)
	return all, wrap(err, "list images")
}

// Image returns one of a workspace, or one that another shares with it, or
// NotFound.
func (s *Store) Image(ctx context.Context, workspace, name string) (doze.Image, error) {
	return imageOf(ctx, s.read, workspace, name)
}

func imageOf(ctx context.Context, q querier, workspace, name string) (doze.Image, error) {
	return one(ctx, q, scanImage, errNoImage, `SELECT i.body FROM images i WHERE `+visibleImage+` AND i.name = $2`, workspace, name)
}

// ChangeImage hands an image of a workspace to fn, a new one without tags if
// there is none, and writes what fn makes of it; without tags it is removed. It
// is a Conflict if the name is that of an image that another workspace shares;
// more than [doze.ImagesMax] are Exhausted.
func (s *Store) ChangeImage(ctx context.Context, workspace, name string, fn func(*doze.Image) error) (i doze.Image, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		i, err = imageOf(ctx, tx, workspace, name)
		fresh := doze.Public(err).Kind == doze.NotFound
		switch {
		case fresh:
			i = doze.Image{Metadata: doze.ImageMetadata{Name: name, Workspace: workspace}}
		case err != nil:
			return err
		case i.Metadata.Workspace != workspace:
			return doze.Errorf(doze.Conflict, "the image %s is shared by the workspace %s: only there it can be changed", name, i.Metadata.Workspace)
		}
		before := imageSizes([]doze.Image{i})
		if err := fn(&i); err != nil {
			return err
		}
		var more int64
		for ref, size := range imageSizes([]doze.Image{i}) {
			if _, had := before[ref]; !had {
				more += size
			}
		}
		if more > 0 {
			if err := s.checkQuota(ctx, tx, workspace, doze.QuotaDisk, megabytes(more)); err != nil {
				return err
			}
		}
		if len(i.Spec.Tags) == 0 {
			_, err := tx.ExecContext(ctx, `DELETE FROM images WHERE workspace = $1 AND name = $2`, workspace, name)
			return err
		}
		if fresh {
			if err := checkRoom(ctx, tx, "images", workspace, doze.ImagesMax); err != nil {
				return err
			}
		}
		return putImage(ctx, tx, i)
	})
	return i, wrap(err, "change image")
}

// TouchImage notes when an image was last deployed, if there is one of the name
// that the workspace has, or that another shares with it.
func (s *Store) TouchImage(ctx context.Context, workspace, name string, at time.Time) error {
	if _, err := s.Image(ctx, workspace, name); doze.Public(err).Kind == doze.NotFound {
		return nil // most sandboxes have one of the platform: nobody waits for the writer
	}
	err := s.update(ctx, func(tx *sql.Tx) error {
		i, err := imageOf(ctx, tx, workspace, name)
		if err != nil {
			return err
		}
		i.Metadata.LastDeployedAt = doze.Time{Time: at}
		return putImage(ctx, tx, i)
	})
	return wrap(err, "note the use of an image")
}

func putImage(ctx context.Context, tx *sql.Tx, i doze.Image) error {
	body, err := json.Marshal(i)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO images (workspace, name, body) VALUES ($1, $2, $3)
		ON CONFLICT (workspace, name) DO UPDATE SET body = excluded.body`, i.Metadata.Workspace, i.Metadata.Name, string(body))
	return err
}

// ImagesInUse returns the references of the images of the living sandboxes of a
// workspace, each once.
func (s *Store) ImagesInUse(ctx context.Context, workspace string) (map[string]bool, error) {
	all, err := collect(ctx, s.read, s.scanSandbox, `SELECT `+sandboxColumns+` FROM sandboxes WHERE workspace = $1 AND `+alive, workspace)
	used := map[string]bool{}
	for _, sb := range all {
		used[sb.Spec.Runtime.Image] = true
	}
	return used, wrap(err, "read the images of sandboxes")
}

// ImageRefs returns what the tags of all images of all workspaces mean, each
// reference once.
func (s *Store) ImageRefs(ctx context.Context) ([]string, error) {
	all, err := collect(ctx, s.read, scanImage, `SELECT body FROM images`)
	var refs []string
	for _, i := range all {
		for _, t := range i.Spec.Tags {
			refs = append(refs, t.Image)
		}
	}
	slices.Sort(refs)
	return slices.Compact(refs), wrap(err, "read the references of all images")
}

// BuiltRefs returns those of ImageRefs that were built or loaded. No registry has them.
func (s *Store) BuiltRefs(ctx context.Context) ([]string, error) {
	refs, err := s.ImageRefs(ctx)
	return slices.DeleteFunc(refs, func(ref string) bool { return !strings.HasPrefix(ref, doze.BuiltPrefix) }), err
}

// ImageShares returns the workspaces that share an image, by name.
func (s *Store) ImageShares(ctx context.Context, workspace, name string) ([]string, error) {
	all, err := collect(ctx, s.read, scanText, `SELECT target FROM image_shares WHERE workspace = $1 AND name = $2 ORDER BY target`, workspace, name)
	return all, wrap(err, "list shares of an image")
}

// InsertImageShare shares an image. It is a Conflict if the target has an image
// of the name, its own or one that is shared with it.
func (s *Store) InsertImageShare(ctx context.Context, workspace, name, target string) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		_, err := imageOf(ctx, tx, target, name)
		if err == nil {
			return doze.Errorf(doze.Conflict, "the workspace %s has an image %s, or it is shared with it already", target, name)
		}
		if doze.Public(err).Kind != doze.NotFound {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO image_shares (target, name, workspace) VALUES ($1, $2, $3)`, target, name, workspace)
		return err
	})
	return wrap(err, "insert share of an image")
}

// DeleteImageShare ends a share, or is NotFound.
func (s *Store) DeleteImageShare(ctx context.Context, workspace, name, target string) error {
	return gone(s.write.ExecContext(ctx, `DELETE FROM image_shares WHERE workspace = $1 AND name = $2 AND target = $3`,
		workspace, name, target))("the image is not shared with that workspace")
}

func scanImage(r row) (i doze.Image, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return i, err
	}
	return i, json.Unmarshal([]byte(body), &i)
}
