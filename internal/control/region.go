package control

import (
	"context"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

// healthy is the status of a region that answers.
const healthy = "healthy"

func (s *Server) configuration(context.Context, *http.Request) (doze.Configuration, error) {
	node := s.node.Load()
	out := doze.Configuration{
		Continents: []doze.Named{}, Countries: []doze.Named{}, PrivateLocations: []doze.Named{}, DetectedRegion: s.Regions[0],
	}
	for _, name := range s.Regions {
		out.Regions = append(out.Regions, doze.Region{
			Name: name, Location: name, Generation: doze.Generation, MK31: true,
			Drives: s.Bucket != nil, Proxy: node.Proxy, Egress: node.Proxy && len(s.Pool) > 0,
		})
	}
	return out, nil
}

func (s *Server) locations(context.Context, *http.Request) ([]doze.Location, error) {
	var all []doze.Location
	for _, name := range s.Regions {
		all = append(all, doze.Location{Location: name, Region: name, Status: healthy, Flavors: []doze.Flavor{}})
	}
	return all, nil
}

// publicIPs are none that we know: the operator's router decides.
func (s *Server) publicIPs(_ context.Context, r *http.Request) (map[string]doze.Addresses, error) {
	all := map[string]doze.Addresses{}
	asked := r.URL.Query().Get("region")
	for _, name := range s.Regions {
		if asked == "" || asked == name {
			all[name] = doze.Addresses{Description: "the addresses of this host, which its operator knows", IPv4: []string{}, IPv6: []string{}}
		}
	}
	return all, nil
}

// features are the switches that are on. We have none.
func (s *Server) features(context.Context, *http.Request) (map[string]map[string]bool, error) {
	return map[string]map[string]bool{"features": {}}, nil
}

// feature is a switch that clients look at, whatever its name: it is off.
func (s *Server) feature(_ context.Context, r *http.Request) (doze.Feature, error) {
	return doze.Feature{Key: api.Clip(r.PathValue("feature")), EvaluatedAt: doze.Time{Time: time.Now()}}, nil
}
