// Package logger has the interface of the logger that Nuclio passes to a function.
package logger

import "context"

// Level is the severity of a line.
type Level uint8

const (
	LevelDebug Level = iota
	LevelInfo
	LevelWarn
	LevelError
)

// Logger writes lines to the function's log. Methods with With in their names take pairs of a name
// and a value. The others take the values for a format.
type Logger interface {
	Error(format interface{}, vars ...interface{})
	Warn(format interface{}, vars ...interface{})
	Info(format interface{}, vars ...interface{})
	Debug(format interface{}, vars ...interface{})

	ErrorCtx(ctx context.Context, format interface{}, vars ...interface{})
	WarnCtx(ctx context.Context, format interface{}, vars ...interface{})
	InfoCtx(ctx context.Context, format interface{}, vars ...interface{})
	DebugCtx(ctx context.Context, format interface{}, vars ...interface{})

	ErrorWith(format interface{}, vars ...interface{})
	WarnWith(format interface{}, vars ...interface{})
	InfoWith(format interface{}, vars ...interface{})
	DebugWith(format interface{}, vars ...interface{})

	ErrorWithCtx(ctx context.Context, format interface{}, vars ...interface{})
	WarnWithCtx(ctx context.Context, format interface{}, vars ...interface{})
	InfoWithCtx(ctx context.Context, format interface{}, vars ...interface{})
	DebugWithCtx(ctx context.Context, format interface{}, vars ...interface{})

	// Flush writes what is held back.
	Flush()
	// GetChild returns a logger whose lines carry the name.
	GetChild(name string) Logger
}
