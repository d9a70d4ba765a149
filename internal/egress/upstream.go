package egress

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/miekg/dns"
)

// resolvConf has the name servers of this host.
const resolvConf = "/etc/resolv.conf"

// An Upstream answers questions of the DNS about all types of records.
type Upstream interface {
	Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error)
}

// Servers is an Upstream that asks servers of the DNS, each as host:port, one after the
// other. Without any it asks those of the host, as they are then.
type Servers []string

// Exchange implements [Upstream].
func (s Servers) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	if len(s) == 0 {
		c, err := dns.ClientConfigFromFile(resolvConf)
		if err != nil {
			return nil, fmt.Errorf("read the name servers: %w", err)
		}
		for _, server := range c.Servers {
			s = append(s, net.JoinHostPort(server, c.Port))
		}
	}
	err := errors.New("this host has no name server")
	for _, server := range s {
		var r *dns.Msg
		if r, _, err = (&dns.Client{Net: "udp", UDPSize: answerMax}).ExchangeContext(ctx, q, server); err == nil && r.Truncated {
			r, _, err = (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, q, server)
		}
		if err == nil && r.Rcode != dns.RcodeServerFailure && r.Rcode != dns.RcodeRefused || ctx.Err() != nil {
			return r, errors.Join(err, ctx.Err())
		}
	}
	if err == nil {
		err = errors.New("every name server refuses")
	}
	return nil, err
}

// questionFor is a question with nothing in it but a name and a type.
func questionFor(name string, kind uint16) *dns.Msg {
	q := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	return q.SetEdns0(answerMax, false)
}
