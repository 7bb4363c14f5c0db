/* Executes statements with libpq in pipeline mode. Reads requests from the standard input and
 * writes replies to the standard output, as tests/drivers/README.md describes. */

#include <err.h>
#include <jansson.h>
#include <libpq-fe.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SESSIONS 8
#define MAX_ARGUMENTS 16

/* The types of pg_type.dat that a column can have. All other types are written as text. */
enum {
    BOOL = 16, BYTEA = 17, INT8 = 20, INT2 = 21, INT4 = 23, JSON = 114, JSONB = 3802,
    BOOL_ARRAY = 1000, TEXT_ARRAY = 1009, UUID_ARRAY = 2951
};

static struct {
    char *name;
    PGconn *connection;
} sessions[MAX_SESSIONS];

/* One argument. The value is allocated; NULL is NULL. */
struct argument {
    char *value;
    int length;
    int is_binary;
};

static void *checked(void *pointer)
{
    if (!pointer)
        errx(1, "out of memory, or a value has no JSON form");
    return pointer;
}

static struct argument decode_base64(const char *text)
{
    int length = strlen(text);
    unsigned char *bytes = checked(malloc(length + 1));
    EVP_DecodeBlock(bytes, (const unsigned char *) text, length);
    const char *padding = strchr(text, '=');
    return (struct argument) {(char *) bytes, length / 4 * 3 - (padding ? strlen(padding) : 0), 1};
}

/* Returns a bytea, which libpq returns in its text form. */
static json_t *bytea(const char *text)
{
    size_t length;
    unsigned char *bytes = checked(PQunescapeBytea((const unsigned char *) text, &length));
    unsigned char *base64 = checked(malloc(length / 3 * 4 + 5));
    EVP_EncodeBlock(base64, bytes, length);
    json_t *reply = json_pack("{s:s}", "bytes", base64);
    free(base64);
    PQfreemem(bytes);
    return reply;
}

/* Returns an array in its text form. */
static char *array_literal(const json_t *array)
{
    char *literal;
    size_t length, n;
    json_t *element;
    FILE *stream = checked(open_memstream(&literal, &length));
    fputc('{', stream);
    json_array_foreach(array, n, element) {
        if (n > 0)
            fputc(',', stream);
        if (json_is_null(element)) {
            fputs("NULL", stream);
            continue;
        }
        fputc('"', stream);
        for (const char *text = json_string_value(element); *text; text++) {
            if (*text == '"' || *text == '\\')
                fputc('\\', stream);
            fputc(*text, stream);
        }
        fputc('"', stream);
    }
    fputc('}', stream);
    fclose(stream);
    return checked(literal);
}

static struct argument argument(const json_t *value)
{
    const json_t *bytes = json_object_get(value, "bytes");
    const json_t *json = json_object_get(value, "json");
    if (json_is_null(value))
        return (struct argument) {NULL, 0, 0};
    if (bytes)
        return decode_base64(json_string_value(bytes));
    if (json_is_string(value))
        return (struct argument) {checked(strdup(json_string_value(value))), 0, 0};
    if (json_is_array(value))
        return (struct argument) {array_literal(value), 0, 0};
    return (struct argument) {checked(json_dumps(json ? json : value, JSON_ENCODE_ANY)), 0, 0};
}

static json_t *cell(const char *text, Oid type);

/* Returns the elements of an array in its text form. They have no quotes, and none is NULL. */
static json_t *elements(const char *array, Oid type)
{
    if (strchr(array, '"') || strstr(array, "NULL"))
        errx(1, "cast this array to text in the SQL: %s", array);
    json_t *elements = json_array();
    char *copy = checked(strdup(array + 1)), *rest;
    for (char *text = strtok_r(copy, ",}", &rest); text; text = strtok_r(NULL, ",}", &rest))
        json_array_append_new(elements, cell(text, type));
    free(copy);
    return elements;
}

/* Returns a value of a result as it is written in a reply. */
static json_t *cell(const char *text, Oid type)
{
    switch (type) {
    case BOOL:
        return json_boolean(*text == 't');
    case INT2:
    case INT4:
    case INT8:
        return json_integer(strtoll(text, NULL, 10));
    case JSON:
    case JSONB:
        return json_pack("{s:o}", "json", json_loads(text, JSON_DECODE_ANY, NULL));
    case BYTEA:
        return bytea(text);
    case BOOL_ARRAY:
        return elements(text, BOOL);
    case TEXT_ARRAY:
    case UUID_ARRAY:
        return elements(text, 0);
    default:
        return json_string(text);
    }
}

static json_t *rows(const PGresult *result)
{
    json_t *rows = json_array();
    for (int y = 0; y < PQntuples(result); y++) {
        json_t *row = json_array();
        for (int x = 0; x < PQnfields(result); x++) {
            bool is_null = PQgetisnull(result, y, x);
            const char *text = PQgetvalue(result, y, x);
            json_array_append_new(row, is_null ? json_null() : cell(text, PQftype(result, x)));
        }
        json_array_append_new(rows, row);
    }
    return json_pack("{s:o}", "rows", rows);
}

static json_t *error(const PGresult *result)
{
    return json_pack("{s:{s:s?, s:s?, s:s?}}", "error",
                     "sqlstate", PQresultErrorField(result, PG_DIAG_SQLSTATE),
                     "hint", PQresultErrorField(result, PG_DIAG_MESSAGE_HINT),
                     "message", PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY));
}

/* Sends a statement and a Sync, and reads the results up to the Sync. The server ends an implicit
 * transaction at a Sync, so that each statement is in autocommit mode. */
static json_t *execute(PGconn *connection, const char *sql, const json_t *arguments)
{
    const char *values[MAX_ARGUMENTS];
    int lengths[MAX_ARGUMENTS], formats[MAX_ARGUMENTS], count = json_array_size(arguments);
    if (count > MAX_ARGUMENTS)
        errx(1, "more than %d arguments", MAX_ARGUMENTS);
    for (int n = 0; n < count; n++) {
        struct argument sent = argument(json_array_get(arguments, n));
        values[n] = sent.value;
        lengths[n] = sent.length;
        formats[n] = sent.is_binary;
    }
    if (!PQsendQueryParams(connection, sql, count, NULL, values, lengths, formats, 0)
        || !PQpipelineSync(connection))
        errx(1, "%s", PQerrorMessage(connection));
    for (int n = 0; n < count; n++)
        free((char *) values[n]);

    PGresult *result = PQgetResult(connection);
    ExecStatusType status = PQresultStatus(result);
    bool is_done = status == PGRES_TUPLES_OK || status == PGRES_COMMAND_OK;
    json_t *reply = checked(is_done ? rows(result) : error(result));
    PQclear(result);
    /* NULL is the end of the results of the statement. */
    PGresult *end = PQgetResult(connection), *synced = PQgetResult(connection);
    if (end || PQresultStatus(synced) != PGRES_PIPELINE_SYNC)
        errx(1, "%s", PQerrorMessage(connection));
    PQclear(synced);
    return reply;
}

static void ignore_notice(void *unused, const PGresult *notice) { (void) unused, (void) notice; }

static PGconn *session(const char *name)
{
    int n = 0;
    while (n < MAX_SESSIONS && sessions[n].name && strcmp(sessions[n].name, name) != 0)
        n++;
    if (n == MAX_SESSIONS)
        errx(1, "more than %d sessions", MAX_SESSIONS);
    if (!sessions[n].name) {
        PGconn *connection = PQconnectdb("");
        if (PQstatus(connection) != CONNECTION_OK || !PQenterPipelineMode(connection))
            errx(1, "%s", PQerrorMessage(connection));
        PQsetNoticeReceiver(connection, ignore_notice, NULL);
        sessions[n].name = checked(strdup(name));
        sessions[n].connection = connection;
    }
    return sessions[n].connection;
}

static json_t *close_all(void)
{
    for (int n = 0; n < MAX_SESSIONS && sessions[n].name; n++) {
        PQfinish(sessions[n].connection);
        free(sessions[n].name);
        sessions[n].name = NULL;
    }
    return json_object();
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, stdin) > 0) {
        json_t *request = checked(json_loads(line, 0, NULL));
        const char *sql = json_string_value(json_object_get(request, "sql"));
        const char *name = json_string_value(json_object_get(request, "session"));
        const json_t *arguments = json_object_get(request, "arguments");
        json_t *reply = sql ? execute(session(name), sql, arguments) : close_all();
        json_dumpf(reply, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(reply);
        json_decref(request);
    }
    free(line);
}
