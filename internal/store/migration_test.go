package store_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/store"
)

// history has rows for the tables that each version of the schema brought, in
// the form that they had then.
var history = map[int64][]string{
	1: {
		`INSERT INTO settings (key, value) VALUES ('k', 'v')`,
		`INSERT INTO workspaces (id, name, created_at, body) VALUES ('id', 'w', 7, '{"id":"id","name":"w"}')`,
		`INSERT INTO api_keys (id, workspace, hash, scopes, expires_at, created_at, last_used_at, body)
			VALUES ('k', 'w', '` + strings.Repeat("00", 32) + `', '["admin"]', 0, 7, 0, '{"id":"k","sub":"admin","sub_type":"user"}')`,
		sandboxRow("alive", "running"), sandboxRow("over", "terminated"),
		`INSERT INTO sandbox_events (uid, n, body) VALUES ('alive', 1, '{"type":"deployment","status":"DEPLOYED"}')`,
		`INSERT INTO leftovers (machine) VALUES ('m')`,
	},
	2: {`INSERT INTO secrets (workspace, name, body, sealed) VALUES ('w', 's', '{}', '')`},
	4: {
		`INSERT INTO users (sub, email, password, epoch, created_at, body) VALUES ('u', 'u@w.test', '', 0, 7, '{"sub":"u","email":"u@w.test"}')`,
		`INSERT INTO members (workspace, sub, role) VALUES ('w', 'u', 'member')`,
		`INSERT INTO invitations (id, workspace, email, hash, expires_at, body) VALUES ('i', 'w', 'i@w.test', '', 7, '{}')`,
		`INSERT INTO service_accounts (client_id, workspace, hash, scopes, created_at, body) VALUES ('a', 'w', '', '[]', 7, '{}')`,
		`INSERT INTO oauth_clients (client_id, workspace, body) VALUES ('c', 'w', '{}')`,
		`INSERT INTO grants (id, sub, phase, expires_at, body) VALUES ('g', 'u', 'active', 7, '{}')`,
	},
	5: {
		`INSERT INTO previews (id, uid, workspace, name, label, expires_at, body) VALUES ('p', 'alive', 'w', 'p', 'l', 0, '{}')`,
		`INSERT INTO preview_tokens (id, preview, created_at, sealed, body) VALUES ('t', 'p', 7, '', '{}')`,
	},
	6: {`INSERT INTO custom_domains (workspace, name, verified, body) VALUES ('w', 'w.test', 'w.test', '{}')`},
	7: {`INSERT INTO networks (workspace, kind, name, parent, created_at, body) VALUES ('w', 'ip', 'n', 'g', 7, '{}')`},
	8: {`INSERT INTO snapshots (id, workspace, uid, name, search, phase, created_at, body) VALUES ('n', 'w', 'alive', 'n', 'n', 'ready', 7, '{}')`},
	9: {`INSERT INTO domain_shares (workspace, name, target) VALUES ('w', 'w.test', 'account')`},
	10: {
		`INSERT INTO schedules (id, uid, workspace, sandbox, name, search, phase, next_at, created_at, sealed, body)
			VALUES ('s', 'alive', 'w', 'alive', 's', 's', 'cron', 7, 7, '', '{}')`,
		`INSERT INTO executions (id, uid, n, workspace, sandbox, name, search, phase, created_at, body)
			VALUES ('alive/1', 'alive', 1, 'w', 'alive', 's', 's', 'succeeded', 7, '{}')`,
	},
	11: {
		`INSERT INTO volumes (id, workspace, name, external_id, search, phase, attached, created_at, body)
			VALUES ('v', 'w', 'v', 'x', 'v', 'ready', 'alive', 7, '{}')`,
		`INSERT INTO volume_templates (workspace, name, body) VALUES ('w', 't', '{}')`,
		`INSERT INTO volume_template_versions (id, workspace, template, name, created_at, body) VALUES ('tv', 'w', 't', '1', 7, '{}')`,
		`INSERT INTO dropped_disks (id) VALUES ('d')`,
	},
	12: {
		`INSERT INTO images (workspace, name, body) VALUES ('w', 'i', '{}')`,
		`INSERT INTO image_shares (target, name, workspace) VALUES ('x', 'i', 'w')`,
	},
	13: {`INSERT INTO certificate_files (key, modified_at, size, sealed) VALUES ('f', 7, 0, '')`},
	14: {`INSERT INTO policies (id, workspace, name, search, phase, created_at, body) VALUES ('p', 'w', 'p', 'p', 'flavor', 7, '{}')`},
	17: {
		`INSERT INTO drives (id, workspace, name, external_id, search, phase, created_at, body) VALUES ('d', 'w', 'd', '', 'd', 'ready', 7, '{}')`,
		`INSERT INTO dropped_drives (id) VALUES ('o')`,
	},
	19: {`INSERT INTO sandbox_pieces (workspace, piece, uid) VALUES ('w', 'ive', 'alive')`},
	21: {`INSERT INTO audit (id, workspace, class, phase, created_at, actor, action, object, source, search, body)
		VALUES ('7', 'w', 'change', 'done', 7, 'u', 'a', 'o', 's', '', '{}')`},
	22: {`INSERT INTO login_sources (sub, network, used_at) VALUES ('u', '192.0.2.1/32', 7)`},
	23: {
		`INSERT INTO workspace_quotas (workspace, name, most) VALUES ('w', 'sandboxes', 3)`,
		`INSERT INTO egress_days (workspace, day, bytes) VALUES ('w', '2026-01-31', 5)`,
	},
	24: {`INSERT INTO builds (id, workspace, name, phase, created_at, sealed, body) VALUES ('b', 'w', 'app', 'ended', 7, '', '{}')`},
	25: {
		`INSERT INTO nodes (id, state, epoch, created_at, body) VALUES ('n', 'ready', 1, 7, '{}')`,
		`INSERT INTO places (kind, id, node, epoch) VALUES ('machine', 'm', 'n', 2)`,
		`INSERT INTO join_tokens (id, hash, expires_at) VALUES ('t', 'h', 7)`,
	},
	26: {`INSERT INTO bucket_files (object, label, mark, idle_at) VALUES ('o', 'l', 'm', 7)`},
}

// sandboxRow adds a sandbox whose name is its uid.
func sandboxRow(name, phase string) string {
	return `INSERT INTO sandboxes
		(uid, workspace, name, external_id, search, machine, phase, seq, revision, created_at, last_used_at, ended_at, deadline, body)
		VALUES ('` + name + `', 'w', '` + name + `', 'x', '` + name + `', '` + name + `', '` + phase + `', 0, 1, 7, 7, 0, NULL,
		'{"metadata":{"name":"` + name + `","workspace":"w","externalId":"x"},"spec":{"runtime":{"image":"i"}}}')`
}

// TestEachMigrationPreservesRecords takes a database from each version of the
// schema to the next, with rows in every table that there is.
func TestEachMigrationPreservesRecords(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		latest := int64(0)
		err := store.Climb(t.Context(), d.address, history, func(version int64, before, after map[string]int) {
			latest = version
			for table, n := range before {
				if n == 0 {
					t.Errorf("version %[2]d finds no row in the table %[1]s: give it one in this test", table, version)
				}
				if after[table] < n {
					t.Errorf("version %d leaves %d rows of %s; there were %d", version, after[table], table, n)
				}
			}
		})
		if err != nil || latest < 22 {
			t.Fatalf("it ends with version %d, %v", latest, err)
		}
		s := d.open(t)
		if sb, err := s.LatestByExternalID(t.Context(), "w", "x"); err != nil || sb.UID != "alive" || sb.Authority != "" || len(sb.Events) != 1 {
			t.Errorf("%+v, %v", sb, err)
		}
		if n, err := s.Count(t.Context(), "w"); n != 1 || err != nil {
			t.Errorf("%d sandboxes, %v", n, err)
		}
		if members, err := s.Members(t.Context(), "w"); len(members) != 2 || err != nil {
			t.Errorf("%+v, %v", members, err)
		}
		if page, err := s.List(t.Context(), listing.Query{Workspace: "w", Limit: 9, Text: "liv"}, epoch); err != nil || len(page.Records) != 1 {
			t.Errorf("a search: %+v, %v", page, err)
		}
		if page, err := s.List(t.Context(), listing.Query{Workspace: "w", Limit: 9}, epoch); err != nil || len(page.Records) != 1 {
			t.Errorf("%+v, %v", page, err)
		}
	})
}
