package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/dozehq/doze"
)

// SetDefaultLimits sets the limits of workspaces that have none of their own.
// It is to be called before anybody else uses the store.
func (s *Store) SetDefaultLimits(l doze.Limits) { s.defaults = l }

// SetMeasured has fn tell how many bytes of the disk workspaces take besides what
// the records know. It must not wait. It is to be called before anybody else uses
// the store.
func (s *Store) SetMeasured(fn func(workspace string) int64) { s.measured = fn }

// Limits returns what operators set, by workspace.
func (s *Store) Limits(ctx context.Context) (map[string]doze.Limits, error) {
	return limitsOf(ctx, s.read, "")
}

func limitsOf(ctx context.Context, q querier, workspace string) (map[string]doze.Limits, error) {
	type limit struct {
		workspace, name string
		most            int64
	}
	rows, err := collect(ctx, q, func(r row) (l limit, err error) { return l, r.Scan(&l.workspace, &l.name, &l.most) },
		`SELECT workspace, name, most FROM workspace_quotas WHERE workspace = $1 OR $1 = ''`, workspace)
	all := map[string]doze.Limits{}
	for _, r := range rows {
		if all[r.workspace] == nil {
			all[r.workspace] = doze.Limits{}
		}
		all[r.workspace][r.name] = r.most
	}
	return all, wrap(err, "read quotas")
}

// SetLimits changes limits of a workspace and returns all that it has then. Nil
// takes a limit back. What exceeds a limit by now stays.
func (s *Store) SetLimits(ctx context.Context, workspace string, change map[string]*int64) (l doze.Limits, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		if _, err := one(ctx, tx, scanText, errNoWorkspace, `SELECT name FROM workspaces WHERE name = $1`, workspace); err != nil {
			return err
		}
		for name, most := range change {
			query, args := `DELETE FROM workspace_quotas WHERE workspace = $1 AND name = $2`, []any{workspace, name}
			if most != nil {
				query = `INSERT INTO workspace_quotas (workspace, name, most) VALUES ($1, $2, $3)
					ON CONFLICT (workspace, name) DO UPDATE SET most = excluded.most`
				args = append(args, *most)
			}
			if _, err := tx.ExecContext(ctx, query, args...); err != nil {
				return err
			}
		}
		all, err := limitsOf(ctx, tx, workspace)
		l = all[workspace]
		return err
	})
	return l, wrap(err, "change quotas")
}

// Counted are the quotas whose use is in the records.
var Counted = []string{doze.QuotaSandboxes, doze.QuotaVolumes, doze.QuotaVolumesSize, doze.QuotaSnapshots, doze.QuotaKeys, doze.QuotaDisk}

// Used returns how much of a quota, one of [Counted], a workspace has used.
func (s *Store) Used(ctx context.Context, workspace, quota string) (int64, error) {
	n, err := s.used(ctx, s.read, workspace, quota)
	return n, wrap(err, "count what is used of %s", quota)
}

func (s *Store) used(ctx context.Context, q querier, workspace, quota string) (int64, error) {
	var n int
	var err error
	switch quota {
	case doze.QuotaDisk:
		bytes, err := onDisk(ctx, q, workspace)
		return megabytes(bytes + s.measured(workspace)), err
	case doze.QuotaSandboxes:
		var rows []int
		rows, err = collect(ctx, q, scanNumber, `SELECT sandboxes FROM counts WHERE workspace = $1`, workspace)
		if len(rows) > 0 {
			n = rows[0]
		}
	case doze.QuotaVolumes:
		n, err = countIn(ctx, q, "volumes", workspace)
	case doze.QuotaVolumesSize:
		var sizes []doze.Megabytes
		sizes, err = collect(ctx, q, scanSize, `SELECT body FROM volumes WHERE workspace = $1`, workspace)
		for _, size := range sizes {
			n += int(size)
		}
	case doze.QuotaSnapshots:
		n, err = countSnapshots(ctx, q, workspace)
	case doze.QuotaKeys:
		n, err = countIn(ctx, q, "api_keys", workspace)
	}
	return int64(n), err
}

func scanSize(r row) (doze.Megabytes, error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return 0, err
	}
	var v doze.Volume
	err := json.Unmarshal([]byte(body), &v)
	return v.Spec.Size, err
}

// checkQuota fails if a workspace would have more of a quota, one of [Counted],
// than it may. There is one writer: what was counted in its transaction is so
// when that ends, and of callers that come together none goes beyond the limit.
func (s *Store) checkQuota(ctx context.Context, tx *sql.Tx, workspace, quota string, more int64) error {
	all, err := limitsOf(ctx, tx, workspace)
	if err != nil {
		return err
	}
	own, most := all[workspace], all[workspace].Of(quota, s.defaults)
	_, set := own[quota]
	_, usual := s.defaults[quota]
	if quota == doze.QuotaDisk && !set && !usual {
		return nil // no host has as much as the default: nobody pays for the sum of all records
	}
	n, err := s.used(ctx, tx, workspace, quota)
	if err == nil && n+more > most {
		err = doze.QuotaExceeded(quota, n, most)
	}
	return err
}

// SetEgress notes what workspaces have sent and received on a day such as
// 2026-01-31, in bytes, and forgets the days before it.
func (s *Store) SetEgress(ctx context.Context, day string, bytes map[string]int64) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM egress_days WHERE day < $1`, day); err != nil {
			return err
		}
		for workspace, n := range bytes {
			_, err := tx.ExecContext(ctx, `INSERT INTO egress_days (workspace, day, bytes) VALUES ($1, $2, $3)
				ON CONFLICT (workspace, day) DO UPDATE SET bytes = excluded.bytes`, workspace, day, n)
			if err != nil {
				return err
			}
		}
		return nil
	})
	return wrap(err, "note egress")
}

// Egress calls fn with what was noted of each workspace and day.
func (s *Store) Egress(ctx context.Context, fn func(workspace, day string, bytes int64)) error {
	_, err := collect(ctx, s.read, func(r row) (none struct{}, err error) {
		var workspace, day string
		var bytes int64
		if err := r.Scan(&workspace, &day, &bytes); err != nil {
			return none, err
		}
		fn(workspace, day, bytes)
		return none, nil
	}, `SELECT workspace, day, bytes FROM egress_days`)
	return wrap(err, "read egress")
}

// megabytes is the least number of them that has room for some bytes.
func megabytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// onDisk is how much disk the records reserve for a workspace, in bytes. Volumes and
// versions of templates count with their sizes, and so do the disks of sandboxes. A
// pending snapshot counts with the memory and the disk of its sandbox, and a ready one
// with its files. An image counts once for all of its tags. A build that has not ended counts with its archive.
func onDisk(ctx context.Context, q querier, workspace string) (sum int64, err error) {
	volumes, err := collect(ctx, q, scanSize, `SELECT body FROM volumes WHERE workspace = $1`, workspace)
	if err != nil {
		return 0, err
	}
	versions, err := collect(ctx, q, scanVersion, `SELECT `+versionColumns+` FROM volume_template_versions WHERE workspace = $1`, workspace)
	if err != nil {
		return 0, err
	}
	snapshots, err := collect(ctx, q, scanSnapshot, `SELECT `+snapshotColumns+` FROM snapshots WHERE workspace = $1 AND phase <> $2`, workspace, snapshotGone)
	if err != nil {
		return 0, err
	}
	images, err := collect(ctx, q, scanImage, `SELECT body FROM images WHERE workspace = $1`, workspace)
	if err != nil {
		return 0, err
	}
	archives, err := collect(ctx, q, scanArchive, `SELECT body FROM builds WHERE workspace = $1 AND phase <> 'ended'`, workspace)
	if err != nil {
		return 0, err
	}
	storage, err := storageOf(ctx, q, ` AND workspace = $1`, workspace)
	if err != nil {
		return 0, err
	}
	for _, bytes := range storage {
		sum += bytes
	}
	for _, bytes := range archives {
		sum += bytes
	}
	for _, size := range volumes {
		sum += size.Bytes()
	}
	for _, v := range versions {
		sum += v.Size.Bytes()
	}
	for _, n := range snapshots {
		switch n.Status {
		case doze.SnapshotPending:
			sum += snapshotMost(n.Spec).Bytes()
		case doze.SnapshotReady:
			sum += n.Bytes
		case doze.SnapshotFailed: // has no files
		}
	}
	for _, size := range imageSizes(images) {
		sum += size
	}
	return sum, nil
}

// snapshotMost is how much a snapshot of a sandbox takes at most.
func snapshotMost(spec doze.SnapshotSpec) doze.Megabytes { return spec.Memory + spec.Storage }

// Storage returns the size of the disk of each machine that has one, in bytes, unless its
// sandbox is gone.
func (s *Store) Storage(ctx context.Context) (map[string]int64, error) {
	sizes, err := storageOf(ctx, s.read, "")
	return sizes, wrap(err, "read the sizes of disks")
}

// storageOf is Storage, of the sandboxes that a condition names.
func storageOf(ctx context.Context, q querier, condition string, args ...any) (map[string]int64, error) {
	sizes := map[string]int64{}
	// Most sandboxes have none, and their records need not be parsed.
	_, err := collect(ctx, q, func(r row) (none struct{}, err error) {
		var machine, body string
		if err := r.Scan(&machine, &body); err != nil {
			return none, err
		}
		var sb doze.Sandbox
		if err := json.Unmarshal([]byte(body), &sb); err != nil {
			return none, err
		}
		if size := sb.Spec.Runtime.Storage.Bytes(); size > 0 {
			sizes[machine] = size
		}
		return none, nil
	}, `SELECT machine, body FROM sandboxes WHERE phase <> 'terminated' AND body LIKE '%"storage":%'`+condition, args...)
	return sizes, err
}

// imageSizes are the bytes of images, by what their tags mean.
func imageSizes(images []doze.Image) map[string]int64 {
	sizes := map[string]int64{}
	for _, i := range images {
		for _, t := range i.Spec.Tags {
			sizes[t.Image] = t.Size
		}
	}
	return sizes
}

// DiskOwners returns the workspace of each machine of a living sandbox. It also
// returns the workspaces that have a tag of an image, by the reference of the image.
func (s *Store) DiskOwners(ctx context.Context) (machines map[string]string, tagged map[string][]string, err error) {
	machines, tagged = map[string]string{}, map[string][]string{}
	_, err = collect(ctx, s.read, func(r row) (none struct{}, err error) {
		var machine, workspace string
		err = r.Scan(&machine, &workspace)
		machines[machine] = workspace
		return none, err
	}, `SELECT machine, workspace FROM sandboxes WHERE phase <> 'terminated'`)
	if err != nil {
		return nil, nil, wrap(err, "read whose machines are")
	}
	images, err := collect(ctx, s.read, scanImage, `SELECT body FROM images`)
	for _, i := range images {
		for ref := range imageSizes([]doze.Image{i}) {
			tagged[ref] = append(tagged[ref], i.Metadata.Workspace)
		}
	}
	return machines, tagged, wrap(err, "read whose images are")
}
