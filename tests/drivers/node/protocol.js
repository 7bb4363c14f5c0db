// What a driver returns: `connect()` returns a connection in autocommit mode, with
// `execute(sql, values)`, which executes one statement with the parameters $1, $2… and returns its
// rows as arrays, or throws a `Refusal`, and with `close()`.

/** A value of type json or jsonb: an argument, or a value that the driver has decoded. */
export class Json {
  constructor(value) {
    this.value = value;
  }
}

/** An error of the server. */
export class Refusal extends Error {
  constructor(sqlstate, hint, message) {
    super(message);
    this.sqlstate = sqlstate;
    this.hint = hint;
  }
}
