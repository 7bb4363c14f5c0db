//! Forwards the connections of a proxy that loses the connection at COMMIT.

use std::future::pending;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::select;

use super::line::{Cut, Line};
use super::listener::Target;
use super::protocol::{Message, Messages};

/// A statement that cancels itself (57014). The proxy sends it in place of the statement that the
/// test wants to be cancelled.
const CANCELLED: &str = "SELECT pg_cancel_backend(pg_backend_pid())";

/// Forwards one connection until one side closes it or it is cut. Then both sides are closed.
pub(super) async fn serve(client: TcpStream, target: &Target, line: &Line) -> io::Result<()> {
    if line.is_down() {
        return Ok(());
    }
    let (from_client, to_client) = split(client);
    let (from_server, mut to_server) = split(target.connect().await?);
    let state = State::default();
    // The start of a connection is a round trip too.
    state.has_replied.store(true, SeqCst);
    let requests = async {
        if forward_requests(from_client, &mut to_server, line, &state).await? == End::Closed {
            // The server may still execute statements. It closes the connection after them.
            to_server.shutdown().await?;
            pending::<()>().await;
        }
        Ok(())
    };
    select! {
        ended = requests => ended,
        ended = forward_replies(from_server, to_client, line, &state) => ended.map(drop),
    }
}

/// What the two directions of a connection share.
#[derive(Default)]
struct State {
    /// Whether the server has replied since the last message of the client.
    has_replied: AtomicBool,
    /// Whether the replies are held back: the client has sent a COMMIT whose reply will be lost.
    holds_replies: AtomicBool,
}

/// How the forwarding of one direction ended.
#[derive(PartialEq, Eq)]
enum End {
    /// The sender has closed its side.
    Closed,
    Cut,
}

/// The number of bytes that one read takes. A vector without capacity would take 64.
const CHUNK: usize = 16 * 1024;

async fn forward_requests(
    mut client: impl AsyncRead + Unpin,
    server: &mut (impl AsyncWrite + Unpin),
    line: &Line,
    state: &State,
) -> io::Result<End> {
    let (mut bytes, mut messages) = (Vec::with_capacity(CHUNK), Messages::of_client());
    while client.read_buf(&mut bytes).await? > 0 {
        if state.has_replied.swap(false, SeqCst) {
            line.count_turn();
        }
        let mut forwarded = Vec::new();
        for message in messages.take(&bytes) {
            if message.is_commit() {
                if line.cuts_at(Cut::BeforeCommit) {
                    server.write_all(&forwarded).await?;
                    return Ok(End::Cut);
                }
                if line.loses_the_reply() {
                    state.holds_replies.store(true, SeqCst);
                }
            }
            if line.cancels(&message) {
                forwarded.extend(Message::query(CANCELLED)?.bytes);
            } else if line.removes_comments.load(SeqCst) {
                forwarded.extend(message.without_mark());
            } else {
                forwarded.extend(message.bytes);
            }
        }
        server.write_all(&forwarded).await?;
        bytes.clear();
    }
    Ok(End::Closed)
}

/// Forwards the replies. After the client has sent a COMMIT whose reply will be lost, no reply is
/// forwarded: a real connection loss would also lose the earlier replies that the client has not
/// received yet.
async fn forward_replies(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    line: &Line,
    state: &State,
) -> io::Result<End> {
    let (mut bytes, mut messages) = (Vec::with_capacity(CHUNK), Messages::of_server());
    let mut held = Vec::new();
    while server.read_buf(&mut bytes).await? > 0 {
        let complete = messages.take(&bytes);
        if !complete.is_empty() {
            state.has_replied.store(true, SeqCst);
        }
        for message in complete {
            if message.is_committed() && line.cuts_at(Cut::AfterCommit) {
                return Ok(End::Cut);
            }
            // This connection is not cut: the server rolled back, or another connection committed
            // first and took the request. So forward the replies again.
            if message.is_committed() || message.is_rolled_back() {
                state.holds_replies.store(false, SeqCst);
            }
            held.extend(message.bytes);
        }
        if !state.holds_replies.load(SeqCst) {
            client.write_all(&held).await?;
            held.clear();
        }
        bytes.clear();
    }
    Ok(End::Closed)
}
