//! Understanding what passes a line: when a request is answered, and names for a table of points
//! that can be read.

use std::collections::HashMap;

/// What is spoken on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tongue {
    /// The protocol of PostgreSQL, version 3.
    Postgres,
    /// One request, one answer, as in HTTP/1.1 and SMTP; requests begin with lines of text.
    Lines,
}

/// Understands one connection.
pub(super) struct Ear {
    tongue: Tongue,
    asked: Messages,
    answered: Messages,
    /// The texts of prepared statements by their names.
    statements: HashMap<Vec<u8>, String>,
    /// Whether the messages of a statement are still coming.
    is_amid: bool,
    /// How many answers are still to come.
    owed: usize,
}

/// A piece of what a client says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub bytes: Vec<u8>,
    /// A request begins with this piece, and this is its name.
    pub begins: Option<String>,
    /// How many answers it is owed.
    answers: usize,
}

impl Ear {
    pub fn new(tongue: Tongue) -> Self {
        Self {
            tongue,
            // The first message of a client has no kind.
            asked: Messages::new(false),
            answered: Messages::new(true),
            statements: HashMap::new(),
            is_amid: false,
            owed: 0,
        }
    }

    /// Whether all that was [passed](Self::pass) has been answered.
    pub fn is_answered(&self) -> bool {
        self.owed == 0
    }

    /// The client says this. However it comes in, the pieces are the same.
    pub fn ask(&mut self, bytes: &[u8]) -> Vec<Piece> {
        if self.tongue == Tongue::Lines {
            let is_new = self.owed == 0;
            return vec![Piece {
                bytes: bytes.to_vec(),
                // Of a longer request the first piece has the name.
                begins: is_new.then(|| first_words(&String::from_utf8_lossy(bytes), 2)),
                answers: usize::from(is_new),
            }];
        }
        let messages = self.asked.take(bytes);
        messages
            .into_iter()
            .map(|message| self.piece(message))
            .collect()
    }

    /// This piece goes to the server.
    pub fn pass(&mut self, piece: &Piece) {
        self.owed += piece.answers;
    }

    /// The server says this.
    pub fn answer(&mut self, bytes: &[u8]) {
        match self.tongue {
            Tongue::Lines => self.owed = 0,
            Tongue::Postgres => {
                let ready = self
                    .answered
                    .take(bytes)
                    .iter()
                    .filter(|message| message.kind == READY)
                    .count();
                self.owed = self.owed.saturating_sub(ready);
            }
        }
    }

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
                // What has no name is run at once.
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
            b'X' => "goodbye".to_owned(),
            _ => "other".to_owned(),
        };
        // Several messages make one statement, up to a Sync; the others stand by themselves. To a
        // goodbye the end of the connection is the answer.
        let is_whole = matches!(kind, CONNECT | b'Q' | b'S' | b'X');
        let was_amid = std::mem::replace(&mut self.is_amid, !is_whole);
        Piece {
            bytes: bytes.clone(),
            begins: (!was_amid).then_some(name),
            answers: usize::from(is_whole),
        }
    }
}

/// The kind of the message that a client begins with.
const CONNECT: u8 = 0;

/// The kind of the message that ends every answer.
const READY: u8 = b'Z';

/// The messages of one side of a connection, put together from pieces.
struct Messages {
    pending: Vec<u8>,
    has_kinds: bool,
}

impl Messages {
    fn new(has_kinds: bool) -> Self {
        Self {
            pending: Vec::new(),
            has_kinds,
        }
    }

    /// Those that are whole now.
    fn take(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.pending.extend_from_slice(bytes);
        let mut whole = Vec::new();
        while let Some(message) = self.next() {
            whole.push(message);
        }
        whole
    }

    fn next(&mut self) -> Option<Message> {
        let kind_bytes = usize::from(self.has_kinds);
        let length = self.pending.get(kind_bytes..)?.first_chunk()?;
        let end = kind_bytes + u32::from_be_bytes(*length) as usize;
        self.pending.get(..end)?;
        let kind = if self.has_kinds {
            self.pending[0]
        } else {
            CONNECT
        };
        self.has_kinds = true;
        let bytes = self.pending.drain(..end).collect();
        Some(Message { kind, bytes })
    }
}

/// A message with its kind and its length.
struct Message {
    kind: u8,
    bytes: Vec<u8>,
}

impl Message {
    fn body(&self) -> &[u8] {
        self.bytes.get(5..).unwrap_or_default()
    }
}

/// The function of idem that a statement calls, or how it begins.
fn shortened(sql: &[u8]) -> String {
    let sql = String::from_utf8_lossy(sql);
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

    fn ask(ear: &mut Ear, bytes: &[u8]) -> Vec<String> {
        let pieces = ear.ask(bytes);
        pieces.iter().for_each(|piece| ear.pass(piece));
        assert_eq!(pieces.concat_bytes(), bytes, "what is said is passed on");
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

    #[test]
    fn every_statement_of_a_pipeline_is_a_request() {
        const IS_READY: &[u8] = b"Z\0\0\0\x05I";
        let mut ear = Ear::new(Tongue::Postgres);
        assert_eq!(ask(&mut ear, b"\0\0\0\x08\0\x03\0\0"), ["connect"]);
        ear.answer(&[b"R\0\0\0\x08\0\0\0\0", IS_READY].concat());
        assert!(ear.is_answered());

        let pipeline = [
            b"Q\0\0\0\x0aBEGIN\0".as_slice(),
            b"P\0\0\0\x1f\0SELECT idem_acquire($1)\0\0\0",
            b"B\0\0\0\x06\0\0S\0\0\0\x04",
            b"Q\0\0\0\x0bCOMMIT\0",
        ];
        assert_eq!(
            ask(&mut ear, &pipeline.concat()),
            ["BEGIN", "idem_acquire", "COMMIT"]
        );
        ear.answer(&[IS_READY, IS_READY].concat());
        ear.answer(&IS_READY[..3]);
        assert!(!ear.is_answered());
        ear.answer(&IS_READY[3..]);
        assert!(ear.is_answered());

        assert!(
            ear.ask(&pipeline[0][..5]).is_empty(),
            "half a message is none"
        );
        assert_eq!(names(&ear.ask(&pipeline[0][5..])), ["BEGIN"]);
    }

    #[test]
    fn a_request_in_pieces_has_one_name_and_one_answer() {
        let mut ear = Ear::new(Tongue::Lines);
        ear.answer(b"220 hello\r\n");
        assert_eq!(
            ask(&mut ear, b"POST /charges HTTP/1.1\r\n"),
            ["POST /charges"]
        );
        assert!(ask(&mut ear, b"\r\n{}").is_empty() && !ear.is_answered());
        ear.answer(b"HTTP/1.1 200 OK\r\n\r\n");
        assert!(ear.is_answered());
    }
}
