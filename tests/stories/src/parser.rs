//! Parses the data that passes a proxy: the start and the end of each request, and readable names
//! for requests.

use std::collections::HashMap;

use idem_testkit::proxy::protocol::{CONNECT, Message, Messages, READY};

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The protocol of PostgreSQL, version 3.
    Postgres,
    /// A protocol with one response per request, such as HTTP/1.1 and SMTP. Requests begin with
    /// lines of text.
    Lines,
}

/// The parser of one connection.
pub(super) struct Parser {
    protocol: Protocol,
    requests: Messages,
    responses: Messages,
    /// The shortened texts of prepared statements, by statement name.
    statements: HashMap<Vec<u8>, String>,
    /// Whether the statement of the last message continues with the next message.
    is_in_statement: bool,
    /// The number of responses that the server has not sent yet.
    missing: usize,
}

/// Bytes from a client: one message of the protocol of PostgreSQL, or with [`Protocol::Lines`] the
/// bytes of one read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub bytes: Vec<u8>,
    /// The name of the request that begins with this piece. `None` if no request begins here.
    pub begins: Option<String>,
    /// The number of responses that the server will send for this piece.
    responses: usize,
}

impl Parser {
    pub fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            requests: Messages::of_client(),
            responses: Messages::of_server(),
            statements: HashMap::new(),
            is_in_statement: false,
            missing: 0,
        }
    }

    /// Returns whether the server has responded to all pieces that were [passed](Self::pass).
    pub fn is_answered(&self) -> bool {
        self.missing == 0
    }

    /// Parses bytes from the client into pieces. With the protocol of PostgreSQL, the pieces do not
    /// depend on how the bytes are split into reads.
    pub fn parse_requests(&mut self, bytes: &[u8]) -> Vec<Piece> {
        if self.protocol == Protocol::Lines {
            let is_new = self.missing == 0;
            return vec![Piece {
                bytes: bytes.to_vec(),
                // Only the first piece of a request has a name.
                begins: is_new.then(|| first_words(&String::from_utf8_lossy(bytes), 2)),
                responses: usize::from(is_new),
            }];
        }
        let messages = self.requests.take(bytes);
        messages
            .into_iter()
            .map(|message| self.piece(message))
            .collect()
    }

    /// Records that a piece is forwarded to the server.
    pub fn pass(&mut self, piece: &Piece) {
        self.missing += piece.responses;
    }

    /// Parses bytes from the server.
    pub fn answer(&mut self, bytes: &[u8]) {
        match self.protocol {
            Protocol::Lines => self.missing = 0,
            Protocol::Postgres => {
                let ready = self
                    .responses
                    .take(bytes)
                    .iter()
                    .filter(|message| message.kind == READY)
                    .count();
                self.missing = self.missing.saturating_sub(ready);
            }
        }
    }

    /// Returns the piece for a message of the client.
    fn piece(&mut self, message: Message) -> Piece {
        let Message { kind, ref bytes } = message;
        let mut fields = message.body().split(|byte| *byte == 0).map(<[u8]>::to_vec);
        let mut field = || fields.next().unwrap_or_default();
        let name = match kind {
            CONNECT => "connect".to_owned(),
            b'Q' => shortened(&field()),
            b'P' => {
                let (statement, sql) = (field(), shortened(&field()));
                self.statements.insert(statement.clone(), sql.clone());
                // An unnamed statement is executed at once, so its Parse begins the execution.
                if statement.is_empty() {
                    sql
                } else {
                    format!("prepare {sql}")
                }
            }
            b'B' => {
                field();
                self.statements.get(&field()).cloned().unwrap_or_default()
            }
            b'X' => "terminate".to_owned(),
            _ => "other".to_owned(),
        };
        // A statement consists of the messages up to a Sync. A connection request, a simple query
        // and a Terminate are one message each. The response to a Terminate is the end of the
        // connection.
        let is_last = matches!(kind, CONNECT | b'Q' | b'S' | b'X');
        let was_in_statement = std::mem::replace(&mut self.is_in_statement, !is_last);
        Piece {
            bytes: bytes.clone(),
            begins: (!was_in_statement).then_some(name),
            responses: usize::from(is_last),
        }
    }
}

/// Returns the name of the idem function in a query, or the first three words of the query. The
/// functions and the comment that guard COMMIT do not count.
fn shortened(sql: &[u8]) -> String {
    let mut sql = String::from_utf8_lossy(sql).into_owned();
    for guard in [
        ", idem_forbid_commit()",
        "; SELECT idem_forbid_commit()",
        "idem_allow_commit(), ",
        " /* idem */",
    ] {
        sql = sql.replace(guard, "");
    }
    let mut words = sql.split(|c: char| !c.is_alphanumeric() && c != '_');
    match words.find(|word| word.starts_with("idem_")) {
        Some(function) => function.to_owned(),
        None => first_words(&sql, 3),
    }
}

fn first_words(text: &str, count: usize) -> String {
    let words: Vec<_> = text.split_whitespace().take(count).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pieces: &[Piece]) -> Vec<&str> {
        pieces
            .iter()
            .filter_map(|piece| piece.begins.as_deref())
            .collect()
    }

    fn ask(parser: &mut Parser, bytes: &[u8]) -> Vec<String> {
        let pieces = parser.parse_requests(bytes);
        pieces.iter().for_each(|piece| parser.pass(piece));
        assert_eq!(pieces.concat_bytes(), bytes, "all bytes are forwarded");
        names(&pieces).into_iter().map(str::to_owned).collect()
    }

    trait Concat {
        fn concat_bytes(&self) -> Vec<u8>;
    }

    impl Concat for Vec<Piece> {
        fn concat_bytes(&self) -> Vec<u8> {
            self.iter().flat_map(|piece| piece.bytes.clone()).collect()
        }
    }

    /// Each statement of a pipeline is a request with its own name and response.
    #[test]
    fn pipeline_has_one_request_per_statement() {
        const IS_READY: &[u8] = b"Z\0\0\0\x05I";
        let mut parser = Parser::new(Protocol::Postgres);
        assert_eq!(ask(&mut parser, b"\0\0\0\x08\0\x03\0\0"), ["connect"]);
        parser.answer(&[b"R\0\0\0\x08\0\0\0\0", IS_READY].concat());
        assert!(parser.is_answered());

        let pipeline = [
            b"Q\0\0\0\x0aBEGIN\0".as_slice(),
            b"P\0\0\0\x1f\0SELECT idem_acquire($1)\0\0\0",
            b"B\0\0\0\x06\0\0S\0\0\0\x04",
            b"Q\0\0\0\x0bCOMMIT\0",
        ];
        assert_eq!(
            ask(&mut parser, &pipeline.concat()),
            ["BEGIN", "idem_acquire", "COMMIT"]
        );
        parser.answer(&[IS_READY, IS_READY].concat());
        parser.answer(&IS_READY[..3]);
        assert!(!parser.is_answered());
        parser.answer(&IS_READY[3..]);
        assert!(parser.is_answered());

        assert!(
            parser.parse_requests(&pipeline[0][..5]).is_empty(),
            "an incomplete message is no piece"
        );
        assert_eq!(names(&parser.parse_requests(&pipeline[0][5..])), ["BEGIN"]);
    }

    /// The name of a query does not depend on the functions that forbid and allow COMMIT.
    #[test]
    fn guards_of_commit_do_not_name_a_query() {
        for (sql, name) in [
            (
                "BEGIN; SELECT idem_try_claim('m', 'd'), idem_forbid_commit()",
                "idem_try_claim",
            ),
            ("COMMIT /* idem */", "COMMIT"),
            (
                "SELECT idem_allow_commit(), idem_complete($1)",
                "idem_complete",
            ),
            ("BEGIN; SELECT idem_forbid_commit()", "BEGIN"),
        ] {
            assert_eq!(shortened(sql.as_bytes()), name);
        }
    }

    /// A request that is read in several pieces is counted once.
    #[test]
    fn split_request_has_one_name_and_one_response() {
        let mut parser = Parser::new(Protocol::Lines);
        parser.answer(b"220 hello\r\n");
        assert_eq!(
            ask(&mut parser, b"POST /charges HTTP/1.1\r\n"),
            ["POST /charges"]
        );
        assert!(ask(&mut parser, b"\r\n{}").is_empty() && !parser.is_answered());
        parser.answer(b"HTTP/1.1 200 OK\r\n\r\n");
        assert!(parser.is_answered());
    }
}
