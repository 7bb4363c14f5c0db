<?php
// Executes statements with PDO. Reads requests from the standard input and writes replies to the
// standard output, as tests/drivers/README.md describes.

declare(strict_types=1);

function connect(): PDO
{
    $dsn = sprintf(
        'pgsql:host=%s;port=%s;dbname=%s;user=%s',
        getenv('PGHOST'),
        getenv('PGPORT'),
        getenv('PGDATABASE'),
        getenv('PGUSER'),
    );
    return new PDO($dsn);
}

/** Returns the statement with the placeholders of PDO: $1 becomes :p1. */
function named(string $sql): string
{
    return preg_replace('/\$(\d+)/', ':p$1', $sql);
}

function bind(PDOStatement $statement, string $name, mixed $value): void
{
    match (true) {
        is_null($value) => $statement->bindValue($name, null, PDO::PARAM_NULL),
        is_bool($value) => $statement->bindValue($name, $value, PDO::PARAM_BOOL),
        is_int($value) => $statement->bindValue($name, $value, PDO::PARAM_INT),
        is_array($value) => $statement->bindValue($name, array_literal($value)),
        isset($value->bytes) =>
            $statement->bindValue($name, base64_decode($value->bytes), PDO::PARAM_LOB),
        is_object($value) => $statement->bindValue($name, json($value->json)),
        default => $statement->bindValue($name, $value),
    };
}

/** PDO has no arrays: a user writes and reads the text form. */
function array_literal(array $elements): string
{
    $quoted = array_map(
        fn ($element) => $element === null ? 'NULL' : '"' . addcslashes($element, '"\\') . '"',
        $elements,
    );
    return '{' . implode(',', $quoted) . '}';
}

/** Returns the elements of an array in its text form. They have no quotes, and none is NULL. */
function elements(string $array): array
{
    if (preg_match('/"|NULL/', $array)) {
        throw new UnexpectedValueException("cast this array to text in the SQL: $array");
    }
    return $array === '{}' ? [] : explode(',', trim($array, '{}'));
}

/** Returns a value of a result as it is written in a reply. */
function cell(mixed $value, string $type): mixed
{
    if ($value === null) {
        return null;
    }
    return match ($type) {
        'bytea' => ['bytes' => base64_encode(stream_get_contents($value))],
        'json', 'jsonb' => ['json' => json_decode($value, flags: JSON_THROW_ON_ERROR)],
        '_bool' => array_map(fn ($element) => $element === 't', elements($value)),
        '_text', '_uuid' => elements($value),
        default => $value,
    };
}

function rows(PDO $session, string $sql, array $arguments): array
{
    $statement = $session->prepare($arguments ? named($sql) : $sql);
    foreach ($arguments as $n => $value) {
        bind($statement, ':p' . ($n + 1), $value);
    }
    $statement->execute();
    $types = [];
    for ($n = 0; $n < $statement->columnCount(); $n++) {
        $types[] = $statement->getColumnMeta($n)['native_type'];
    }
    $rows = $types ? $statement->fetchAll(PDO::FETCH_NUM) : [];
    return array_map(fn ($row) => array_map('cell', $row, $types), $rows);
}

function execute(PDO $session, string $sql, array $arguments): array
{
    try {
        return ['rows' => rows($session, $sql, $arguments)];
    } catch (PDOException $error) {
        [$sqlstate, , $message] = $error->errorInfo;
        if ($message === null) {
            throw $error;
        }
        // PDO returns the hint only as a line of the message.
        preg_match('/^HINT:  (.*)$/m', $message, $hint);
        $hint = $hint[1] ?? null;
        return ['error' => ['sqlstate' => $sqlstate, 'hint' => $hint, 'message' => $message]];
    }
}

function json(mixed $value): string
{
    return json_encode($value, JSON_THROW_ON_ERROR | JSON_PRESERVE_ZERO_FRACTION);
}

$sessions = [];
while (($line = fgets(STDIN)) !== false) {
    $request = json_decode($line, flags: JSON_THROW_ON_ERROR);
    if (isset($request->sql)) {
        $session = $sessions[$request->session] ??= connect();
        $reply = execute($session, $request->sql, $request->arguments);
    } else {
        $session = null;
        $sessions = [];
        $reply = new stdClass();
    }
    echo json($reply), "\n";
}
