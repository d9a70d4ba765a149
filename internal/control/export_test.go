package control

import "context"

// Unfinished is what the reconcile loop has found to do, by the turn that it
// needs.
func (s *Server) Unfinished(ctx context.Context) (map[string]func(context.Context) error, error) {
	work, err := s.unfinished(ctx)
	todo := map[string]func(context.Context) error{}
	for turn, c := range work {
		todo[turn] = c.do
	}
	return todo, err
}
