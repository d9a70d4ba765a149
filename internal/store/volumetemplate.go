package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/dozehq/doze"
)

// Version is the record of a version of a volume template.
type Version struct {
	doze.VolumeTemplateVersion
	ID       string         `json:"-"`    // what nodes know its disk by
	Size     doze.Megabytes `json:"size"` // of its disk
	Token    []byte         `json:"token"`
	Uploaded doze.Time      `json:"uploaded,omitzero"`
}

const (
	errNoTemplate  = "there is no volume template %.80q"
	errNoVersion   = "the volume template has no version %.80q"
	versionColumns = `id, body`
)

// VolumeTemplates returns those of a workspace, by name.
func (s *Store) VolumeTemplates(ctx context.Context, workspace string) ([]doze.VolumeTemplate, error) {
	all, err := collect(ctx, s.read, scanTemplate, `SELECT body FROM volume_templates WHERE workspace = $1 ORDER BY name`, workspace)
	for i := range all {
		if err == nil {
			err = complete(ctx, s.read, &all[i])
		}
	}
	return all, wrap(err, "list volume templates")
}

// VolumeTemplate returns one with its versions, the oldest first, or NotFound.
func (s *Store) VolumeTemplate(ctx context.Context, workspace, name string) (doze.VolumeTemplate, error) {
	return templateOf(ctx, s.read, workspace, name)
}

func templateOf(ctx context.Context, q querier, workspace, name string) (t doze.VolumeTemplate, err error) {
	t, err = one(ctx, q, scanTemplate, fmt.Sprintf(errNoTemplate, name),
		`SELECT body FROM volume_templates WHERE workspace = $1 AND name = $2`, workspace, name)
	if err == nil {
		err = complete(ctx, q, &t)
	}
	return t, err
}

// complete adds the versions of a template, and what follows from them.
func complete(ctx context.Context, q querier, t *doze.VolumeTemplate) error {
	all, err := versionsOf(ctx, q, t.Metadata.Workspace, t.Metadata.Name)
	t.Versions, t.State = make([]doze.VolumeTemplateVersion, len(all)), doze.VolumeTemplateState{Status: "created", VersionCount: len(all)}
	for i, v := range all {
		t.Versions[i] = v.VolumeTemplateVersion
		if v.Status == doze.VersionReady && !v.Uploaded.Before(t.State.LastVersionUploadedAt.Time) {
			t.State.Status, t.State.LatestVersion, t.State.LastVersionUploadedAt = "ready", v.Name, v.Uploaded
		}
	}
	return err
}

func versionsOf(ctx context.Context, q querier, workspace, template string) ([]Version, error) {
	return collect(ctx, q, scanVersion, `SELECT `+versionColumns+` FROM volume_template_versions
		WHERE workspace = $1 AND template = $2 ORDER BY created_at, id`, workspace, template)
}

// PutVolumeTemplate hands a template, or an empty one, to fn and writes what fn
// makes of it, with another version if one is given: one without a name gets the
// next number. It is one transaction. More than fit into a workspace or a
// template are Exhausted, a version that is there is a Conflict.
func (s *Store) PutVolumeTemplate(ctx context.Context, workspace, name string, fn func(t *doze.VolumeTemplate, exists bool) error, add *Version) (t doze.VolumeTemplate, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		t, err = templateOf(ctx, tx, workspace, name)
		exists := err == nil
		if err != nil && doze.Public(err).Kind != doze.NotFound {
			return err
		}
		if err := fn(&t, exists); err != nil {
			return err
		}
		if err := putTemplate(ctx, tx, t, exists); err != nil {
			return err
		}
		if add != nil {
			err := cmp.Or(s.checkQuota(ctx, tx, workspace, doze.QuotaDisk, int64(add.Size)), insertVersion(ctx, tx, t, add))
			if err != nil {
				return err
			}
		}
		t, err = templateOf(ctx, tx, workspace, name)
		return err
	})
	return t, wrap(err, "write volume template")
}

func putTemplate(ctx context.Context, tx *sql.Tx, t doze.VolumeTemplate, exists bool) error {
	if !exists {
		if err := checkRoom(ctx, tx, "volume_templates", t.Metadata.Workspace, doze.VolumeTemplatesMax); err != nil {
			return err
		}
	}
	t.Versions, t.State = nil, doze.VolumeTemplateState{}
	body, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO volume_templates (workspace, name, body) VALUES ($1, $2, $3)
		ON CONFLICT (workspace, name) DO UPDATE SET body = excluded.body`, t.Metadata.Workspace, t.Metadata.Name, string(body))
	return err
}

func insertVersion(ctx context.Context, tx *sql.Tx, t doze.VolumeTemplate, v *Version) error {
	all, err := versionsOf(ctx, tx, t.Metadata.Workspace, t.Metadata.Name)
	if err != nil {
		return err
	}
	if len(all) >= doze.TemplateVersionsMax {
		return doze.Errorf(doze.Exhausted, "the volume template has %d versions, which is the limit: delete one first", len(all))
	}
	next := 1
	for _, o := range all {
		if n, err := strconv.Atoi(o.Name); err == nil && n >= next {
			next = n + 1
		}
	}
	if v.Name == "" {
		v.Name = strconv.Itoa(next)
	}
	v.Workspace, v.TemplateName, v.VersionID, v.Status = t.Metadata.Workspace, t.Metadata.Name, v.ID, doze.VersionCreated
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO volume_template_versions (id, workspace, template, name, created_at, body) VALUES ($1, $2, $3, $4, $5, $6)`,
		v.ID, v.Workspace, v.TemplateName, v.Name, millis(time.Now()), string(body))
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the volume template has a version %s already: leave out its name, or choose another one", v.Name)
	}
	return err
}

// Version returns one of a template, or the newest that is ready for
// [doze.VolumeTemplateLatest]; or NotFound.
func (s *Store) Version(ctx context.Context, workspace, template, name string) (Version, error) {
	t, err := templateOf(ctx, s.read, workspace, template)
	if err != nil {
		return Version{}, err
	}
	if name == doze.VolumeTemplateLatest {
		if name = t.State.LatestVersion; name == "" {
			return Version{}, doze.Errorf(doze.NotFound, "no version of the volume template %s is ready: upload one", template)
		}
	}
	return one(ctx, s.read, scanVersion, fmt.Sprintf(errNoVersion, name), `SELECT `+versionColumns+` FROM volume_template_versions
		WHERE workspace = $1 AND template = $2 AND name = $3`, workspace, template, name)
}

// VersionByID returns a version of any workspace, or NotFound.
func (s *Store) VersionByID(ctx context.Context, id string) (Version, error) {
	return one(ctx, s.read, scanVersion, "there is no such upload", `SELECT `+versionColumns+` FROM volume_template_versions WHERE id = $1`, id)
}

// WriteVersion writes what an upload made of a version. One that was deleted
// meanwhile is NotFound.
func (s *Store) WriteVersion(ctx context.Context, v Version) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return gone(s.write.ExecContext(ctx, `UPDATE volume_template_versions SET body = $1 WHERE id = $2`, string(body), v.ID))("the version was deleted meanwhile")
}

// DeleteVersion removes a version and returns its template without it; its disk
// remains to be removed. The only one is Invalid.
func (s *Store) DeleteVersion(ctx context.Context, workspace, template, name string) (t doze.VolumeTemplate, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		all, err := versionsOf(ctx, tx, workspace, template)
		if err != nil {
			return err
		}
		for _, v := range all {
			if v.Name != name {
				continue
			}
			if len(all) == 1 {
				return doze.Errorf(doze.Invalid, "the version %s is the only one: delete the volume template", name)
			}
			if err := dropDisk(ctx, tx, v.ID); err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `DELETE FROM volume_template_versions WHERE id = $1`, v.ID); err != nil {
				return err
			}
			t, err = templateOf(ctx, tx, workspace, template)
			return err
		}
		if t, err = templateOf(ctx, tx, workspace, template); err == nil {
			err = doze.Errorf(doze.NotFound, errNoVersion, name)
		}
		return err
	})
	return t, wrap(err, "delete a version")
}

// DeleteVolumeTemplate removes a template and returns it; the disks of its
// versions remain to be removed. What was made of them lives on.
func (s *Store) DeleteVolumeTemplate(ctx context.Context, workspace, name string) (t doze.VolumeTemplate, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		if t, err = templateOf(ctx, tx, workspace, name); err != nil {
			return err
		}
		for _, v := range t.Versions {
			if err := dropDisk(ctx, tx, v.VersionID); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM volume_templates WHERE workspace = $1 AND name = $2`, workspace, name)
		return err
	})
	return t, wrap(err, "delete volume template")
}

func scanTemplate(r row) (t doze.VolumeTemplate, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return t, err
	}
	t.Metadata.Plan = doze.Plan // records of earlier versions have none
	return t, json.Unmarshal([]byte(body), &t)
}

func scanVersion(r row) (v Version, err error) {
	var body string
	if err := r.Scan(&v.ID, &body); err != nil {
		return v, err
	}
	return v, json.Unmarshal([]byte(body), &v)
}
