package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"time"

	"github.com/dozehq/doze"
)

// NetworkKind is a kind of [doze.NetworkResource].
type NetworkKind string

// The kinds; each lives in the one before.
const (
	VPC     NetworkKind = "vpc"
	Gateway NetworkKind = "gateway"
	IP      NetworkKind = "ip"
)

// inside are the kinds that live in another, and in which.
var inside = map[NetworkKind]NetworkKind{Gateway: VPC, IP: Gateway}

// words name the kinds in messages.
var words = map[NetworkKind]string{VPC: "VPC", Gateway: "egress gateway", IP: "egress IP"}

func errNoNetwork(kind NetworkKind) string { return "there is no such " + words[kind] }

// Networks returns the resources of a kind that a parent has, by name; those
// of all parents for the empty name.
func (s *Store) Networks(ctx context.Context, workspace string, kind NetworkKind, parent string) ([]doze.NetworkResource, error) {
	all, err := collect(ctx, s.read, scanNetwork, `SELECT body FROM networks
		WHERE workspace = $1 AND kind = $2 AND (parent = $3 OR $3 = '') ORDER BY name`, workspace, string(kind), parent)
	return all, wrap(err, "list networks")
}

// Network returns a resource, or NotFound.
func (s *Store) Network(ctx context.Context, workspace string, kind NetworkKind, name string) (doze.NetworkResource, error) {
	return one(ctx, s.read, scanNetwork, errNoNetwork(kind), `SELECT body FROM networks
		WHERE workspace = $1 AND kind = $2 AND name = $3`, workspace, string(kind), name)
}

// InsertNetwork adds a resource to its parent. A name that another of its kind
// has in the workspace is a Conflict; a parent that is gone is NotFound.
func (s *Store) InsertNetwork(ctx context.Context, kind NetworkKind, parent string, n doze.NetworkResource) error {
	body, err := json.Marshal(n)
	if err != nil {
		return wrap(err, "encode network")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		if of, ok := inside[kind]; ok && (of != VPC || parent != doze.DefaultVPC) {
			if _, err := one(ctx, tx, scanNetwork, errNoNetwork(of), `SELECT body FROM networks
				WHERE workspace = $1 AND kind = $2 AND name = $3`, n.Metadata.Workspace, string(of), parent); err != nil {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO networks (workspace, kind, name, parent, created_at, body) VALUES ($1, $2, $3, $4, $5, $6)`,
			n.Metadata.Workspace, string(kind), n.Metadata.Name, parent, millis(n.Metadata.CreatedAt.Time), string(body))
		return err
	})
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the %s %s already exists", words[kind], n.Metadata.Name)
	}
	return err
}

// DeleteNetwork removes a resource and returns it. While others live in it, it
// is a Conflict.
func (s *Store) DeleteNetwork(ctx context.Context, workspace string, kind NetworkKind, name string) (n doze.NetworkResource, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		for child, of := range inside {
			if of != kind {
				continue
			}
			inIt, err := collect(ctx, tx, scanText, `SELECT name FROM networks
				WHERE workspace = $1 AND kind = $2 AND parent = $3 LIMIT 1`, workspace, string(child), name)
			if err != nil {
				return err
			}
			if len(inIt) > 0 {
				return doze.Errorf(doze.Conflict, "the %s %s is in it: delete that first", words[child], inIt[0])
			}
		}
		n, err = one(ctx, tx, scanNetwork, errNoNetwork(kind), `DELETE FROM networks
			WHERE workspace = $1 AND kind = $2 AND name = $3 RETURNING body`, workspace, string(kind), name)
		return err
	})
	return n, err
}

func scanNetwork(r row) (n doze.NetworkResource, err error) {
	var body string
	if err := r.Scan(&body); err != nil {
		return n, err
	}
	return n, json.Unmarshal([]byte(body), &n)
}

// GiveAddresses gives free addresses of a pool to the egress IPs that have none,
// the oldest first, for as many as there are. One that was given out stays with
// its egress IP, whatever the pool is now. The others fail, with the reason, until one
// is free.
func (s *Store) GiveAddresses(ctx context.Context, pool doze.AddressPool, now time.Time) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		given, err := collect(ctx, tx, scanText, `SELECT address FROM networks WHERE address <> ''`)
		if err != nil {
			return err
		}
		taken := map[string]bool{}
		for _, address := range given {
			taken[address] = true
		}
		waiting, err := collect(ctx, tx, scanNetwork, `SELECT body FROM networks
			WHERE kind = $1 AND address = '' AND parent <> '' ORDER BY created_at, workspace, name`, string(IP))
		if err != nil {
			return err
		}
		waiting = slices.DeleteFunc(waiting, func(ip doze.NetworkResource) bool { return ip.Spec.IPFamily != doze.IPv4 })
		for address := range pool.All() {
			if len(waiting) == 0 {
				break
			}
			if taken[address.String()] {
				continue
			}
			ip := waiting[0]
			ip.Spec.PublicIP = address.String()
			if err := settle(ctx, tx, ip, doze.Running, "it has the address "+ip.Spec.PublicIP, now); err != nil {
				return err
			}
			waiting = waiting[1:]
		}
		for _, ip := range waiting {
			if err := settle(ctx, tx, ip, doze.Failed, whyNoAddress(pool), now); err != nil {
				return err
			}
		}
		return nil
	})
	return wrap(err, "give addresses")
}

// whyNoAddress says why there is no address, and what to do.
func whyNoAddress(pool doze.AddressPool) string {
	if len(pool) == 0 {
		return "this platform has no addresses to give: ask its operator to name some with --egress-pool"
	}
	return "all addresses of the platform are taken: delete an egress IP that is not needed, or ask the operator for a larger --egress-pool. " +
		"It gets the next one that is free"
}

// settle records what became of an egress IP, unless its last event says so.
func settle(ctx context.Context, tx *sql.Tx, ip doze.NetworkResource, phase doze.Phase, message string, now time.Time) error {
	if n := len(ip.Events); n > 0 && ip.Status == phase.Status() && ip.Events[n-1].Message == message {
		return nil
	}
	ip.Status = phase.Status()
	ip.Events = append(ip.Events, doze.Event{
		Type: doze.EventDeployment, Status: ip.Status, Message: message, Time: doze.Time{Time: now},
	}.Revised(doze.FirstRevision))
	ip.Events = ip.Events[max(0, len(ip.Events)-eventsMax):]
	body, err := json.Marshal(ip)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE networks SET address = $1, body = $2 WHERE workspace = $3 AND kind = $4 AND name = $5`,
		ip.Spec.PublicIP, string(body), ip.Metadata.Workspace, string(IP), ip.Metadata.Name)
	return err
}

// RetireAddress takes an egress IP out of its gateway, for nobody to leave from it
// any more. Its address stays taken until it is deleted.
func (s *Store) RetireAddress(ctx context.Context, workspace, name string) error {
	return s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE networks SET parent = '' WHERE workspace = $1 AND kind = $2 AND name = $3`, workspace, string(IP), name)
		return wrap(err, "retire an address")
	})
}

// DropRetired completes what [Store.RetireAddress] began in a process that ended.
// Nobody may leave from these addresses any more.
func (s *Store) DropRetired(ctx context.Context) error {
	return s.update(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM networks WHERE kind = $1 AND parent = ''`, string(IP))
		return wrap(err, "drop retired addresses")
	})
}

// GatewayAddresses returns the egress IPs of a gateway that have an address, the oldest
// first.
func (s *Store) GatewayAddresses(ctx context.Context, workspace, gateway string) ([]doze.NetworkResource, error) {
	all, err := collect(ctx, s.read, scanNetwork, `SELECT body FROM networks
		WHERE workspace = $1 AND kind = $2 AND parent = $3 AND address <> '' ORDER BY created_at, name`, workspace, string(IP), gateway)
	return all, wrap(err, "find the addresses of a gateway")
}
