package store

import (
	"context"

	"github.com/dozehq/doze"
)

const (
	errNoShare = "the domain is not shared with that workspace"
	// sharedWith selects the domains d that others share with the workspace $1.
	sharedWith = `d.workspace <> $1 AND EXISTS (SELECT 1 FROM domain_shares s
		WHERE s.workspace = d.workspace AND s.name = d.name AND s.target IN ($1, '` + doze.DomainEverybody + `'))`
)

// DomainShares returns the workspaces that share a domain, by name.
func (s *Store) DomainShares(ctx context.Context, workspace, name string) ([]string, error) {
	all, err := collect(ctx, s.read, scanText, `SELECT target FROM domain_shares WHERE workspace = $1 AND name = $2 ORDER BY target`, workspace, name)
	return all, wrap(err, "list shares of a custom domain")
}

// SharedDomains returns the domains that others share with a workspace, by
// name.
func (s *Store) SharedDomains(ctx context.Context, workspace string) ([]doze.CustomDomain, error) {
	all, err := collect(ctx, s.read, scanDomain, `SELECT d.body FROM custom_domains d WHERE `+sharedWith+` ORDER BY d.name, d.workspace`, workspace)
	return all, wrap(err, "list shared custom domains")
}

// SharedDomain returns the one of a name that another workspace has verified
// and shares, or NotFound.
func (s *Store) SharedDomain(ctx context.Context, workspace, name string) (doze.CustomDomain, error) {
	return one(ctx, s.read, scanDomain, errNoDomain, `SELECT d.body FROM custom_domains d WHERE `+sharedWith+` AND d.verified = $2`, workspace, name)
}

// InsertDomainShare shares a domain, which is a Conflict if it is already.
func (s *Store) InsertDomainShare(ctx context.Context, workspace, name, target string) error {
	_, err := s.write.ExecContext(ctx, `INSERT INTO domain_shares (workspace, name, target) VALUES ($1, $2, $3)`, workspace, name, target)
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the domain is shared with %s already", target)
	}
	return wrap(err, "insert share of a custom domain")
}

// DeleteDomainShare ends a share, or is NotFound.
func (s *Store) DeleteDomainShare(ctx context.Context, workspace, name, target string) error {
	return gone(s.write.ExecContext(ctx, `DELETE FROM domain_shares WHERE workspace = $1 AND name = $2 AND target = $3`, workspace, name, target))(errNoShare)
}
