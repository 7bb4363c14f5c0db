// Executes statements with a driver of Go: `main pgx` or `main database_sql`, which is database/sql
// over pgx. A further argument is a connection string: `statement_cache_mode=describe`. Reads
// requests from the standard input and writes replies to the standard output, as
// tests/drivers/README.md describes.
package main

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgtype"
	"github.com/jackc/pgx/v4"
	_ "github.com/jackc/pgx/v4/stdlib"
)

type request struct {
	SQL       string
	Session   string
	Arguments []json.RawMessage
	Close     bool
}

// session is a connection in autocommit mode.
type session interface {
	execute(sql string, arguments []any) ([][]any, error)
	close() error
}

var drivers = map[string]func() (session, error){"pgx": openPgx, "database_sql": openDatabaseSQL}

var background = context.Background()

func main() {
	open := drivers[os.Args[1]]
	sessions := map[string]session{}
	requests := json.NewDecoder(bufio.NewReader(os.Stdin))
	replies := json.NewEncoder(os.Stdout)
	for requests.More() {
		var request request
		check(requests.Decode(&request))
		if request.Close {
			for name, session := range sessions {
				check(session.close())
				delete(sessions, name)
			}
			check(replies.Encode(struct{}{}))
			continue
		}
		if sessions[request.Session] == nil {
			session, err := open()
			check(err)
			sessions[request.Session] = session
		}
		check(replies.Encode(reply(sessions[request.Session], request)))
	}
}

// connString returns what the environment does not define.
func connString() string { return strings.Join(os.Args[2:], " ") }

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func reply(session session, request request) any {
	arguments := make([]any, len(request.Arguments))
	for n, text := range request.Arguments {
		arguments[n] = argument(text)
	}
	rows, err := session.execute(request.SQL, arguments)
	var server *pgconn.PgError
	switch {
	case err == nil:
		return map[string]any{"rows": rows}
	case errors.As(err, &server):
		return failure(server.Code, server.Hint, server.Message)
	default:
		// pgx finds some invalid arguments itself. Such an error has no SQLSTATE.
		return failure("", "", err.Error())
	}
}

func failure(sqlstate, hint, message string) any {
	error := map[string]string{"sqlstate": sqlstate, "hint": hint, "message": message}
	return map[string]any{"error": error}
}

// argument returns an argument of a request as a value of Go. pgx converts it to the type of the
// parameter, which it asks the server for. It passes a string to the server in text format.
func argument(text json.RawMessage) any {
	var object struct {
		Bytes []byte
		JSON  json.RawMessage
	}
	var number int64
	var elements []*string
	switch text[0] {
	case '{':
		check(json.Unmarshal(text, &object))
		if object.JSON != nil {
			return string(object.JSON)
		}
		return object.Bytes
	case '[':
		check(json.Unmarshal(text, &elements))
		return elements
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		check(json.Unmarshal(text, &number))
		return number
	}
	var value any
	check(json.Unmarshal(text, &value))
	return value
}

type pgxSession struct{ *pgx.Conn }

func openPgx() (session, error) {
	conn, err := pgx.Connect(background, connString())
	return pgxSession{conn}, err
}

func (s pgxSession) execute(sql string, arguments []any) ([][]any, error) {
	rows, err := s.Query(background, sql, arguments...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	all := [][]any{}
	for rows.Next() {
		row, err := rows.Values()
		if err != nil {
			return nil, err
		}
		for n, column := range rows.FieldDescriptions() {
			isJSON := column.DataTypeOID == pgtype.JSONOID || column.DataTypeOID == pgtype.JSONBOID
			if isJSON && row[n] != nil {
				row[n] = map[string]any{"json": row[n]}
			} else {
				row[n] = cell(row[n])
			}
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

func (s pgxSession) close() error { return s.Close(background) }

// databaseSQL has one connection, because the transactions of the cases are statements.
type databaseSQL struct {
	db *sql.DB
	*sql.Conn
}

func openDatabaseSQL() (session, error) {
	db, err := sql.Open("pgx", connString())
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(background)
	return databaseSQL{db, conn}, err
}

func (s databaseSQL) execute(statement string, arguments []any) ([][]any, error) {
	rows, err := s.QueryContext(background, statement, arguments...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.ColumnTypes()
	if err != nil {
		return nil, err
	}
	all := [][]any{}
	for rows.Next() {
		row := make([]any, len(columns))
		for n, column := range columns {
			row[n] = target(column.DatabaseTypeName())
		}
		if err := rows.Scan(row...); err != nil {
			return nil, err
		}
		for n, target := range row {
			row[n] = cell(target)
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

func (s databaseSQL) close() error {
	if err := s.Conn.Close(); err != nil {
		return err
	}
	return s.db.Close()
}

// target returns what database/sql scans a column into. It has no arrays and no JSON, so these are
// types of pgx.
func target(typeName string) any {
	switch typeName {
	case "JSON", "JSONB":
		return new(pgtype.JSONB)
	case "_BOOL":
		return new(pgtype.BoolArray)
	case "_TEXT":
		return new(pgtype.TextArray)
	case "_UUID":
		return new(pgtype.UUIDArray)
	default:
		return new(any)
	}
}

// cell returns a value of a result as it is written in a reply.
func cell(value any) any {
	switch value := value.(type) {
	case *any:
		return cell(*value)
	case *pgtype.JSONB:
		if value.Status == pgtype.Null {
			return nil
		}
		return map[string]any{"json": value.Get()}
	case pgtype.Value:
		return cell(value.Get())
	case []byte:
		return map[string]any{"bytes": value}
	case [16]byte:
		return pgtype.UUID{Bytes: value, Status: pgtype.Present}
	case pgtype.BoolArray:
		return elements(value.Elements)
	case pgtype.TextArray:
		return elements(value.Elements)
	case pgtype.UUIDArray:
		return elements(value.Elements)
	}
	return value
}

// elements returns the elements of an array. JSON has null for a nil slice, so an empty array is
// another slice.
func elements[T any](array []T) []T { return append([]T{}, array...) }
