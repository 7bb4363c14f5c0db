//! Forwards the connections of a proxy.

use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::protocol::{Message, simple_query};
use super::{Cut, Line};

/// A statement that cancels itself (57014). The proxy sends it in place of the statement that the
/// test wants to be cancelled.
const CANCELLED: &str = "SELECT pg_cancel_backend(pg_backend_pid())";

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn accept(listener: TcpListener, socket: PathBuf, line: Arc<Line>) {
    let mut connections = JoinSet::new();
    loop {
        select! {
            accepted = listener.accept() => match accepted {
                Ok(_) if line.is_down.load(SeqCst) => {}
                Ok((client, _)) => {
                    let (socket, line) = (socket.clone(), Arc::clone(&line));
                    connections.spawn(async move { serve(client, &socket, &line).await });
                }
                // The client has closed the connection, or the process has too many files open.
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards one connection until one side closes it or it is cut. Then both sides are closed.
async fn serve(mut client: TcpStream, socket: &Path, line: &Line) -> io::Result<()> {
    client.set_nodelay(true)?;
    let mut server = UnixStream::connect(socket).await?;
    line.turns.fetch_add(1, SeqCst);
    start(&mut client, &mut server).await?;
    let (from_client, to_client) = split(client);
    let (from_server, mut to_server) = split(server);
    let state = State::default();
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

/// Forwards the first message of a connection, which has no type.
async fn start(client: &mut TcpStream, server: &mut UnixStream) -> io::Result<()> {
    let length = client.read_u32().await?;
    let mut rest = vec![
        0;
        usize::try_from(length)
            .map_err(io::Error::other)?
            .saturating_sub(4)
    ];
    client.read_exact(&mut rest).await?;
    server.write_u32(length).await?;
    server.write_all(&rest).await
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

async fn forward_requests(
    mut client: impl AsyncRead + Unpin,
    server: &mut (impl AsyncWrite + Unpin),
    line: &Line,
    state: &State,
) -> io::Result<End> {
    let mut received = Vec::new();
    loop {
        if client.read_buf(&mut received).await? == 0 {
            return Ok(End::Closed);
        }
        if state.has_replied.swap(false, SeqCst) {
            line.turns.fetch_add(1, SeqCst);
        }
        let mut complete = 0;
        while let Some((message, length)) = Message::first(&received[complete..])? {
            if message.is_commit() {
                if line.cuts_at(Cut::BeforeCommit) {
                    server.write_all(&received[..complete]).await?;
                    return Ok(End::Cut);
                }
                if line.loses_the_reply() {
                    state.holds_replies.store(true, SeqCst);
                }
            }
            if line.cancels(message) {
                server.write_all(&received[..complete]).await?;
                server.write_all(&simple_query(CANCELLED)?).await?;
                received.drain(..complete + length);
                complete = 0;
            } else {
                complete += length;
            }
        }
        server.write_all(&received[..complete]).await?;
        received.drain(..complete);
    }
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
    let mut received = Vec::new();
    loop {
        if server.read_buf(&mut received).await? == 0 {
            return Ok(End::Closed);
        }
        let mut complete = 0;
        while let Some((message, length)) = Message::first(&received[complete..])? {
            if message.is_committed() && line.cuts_at(Cut::AfterCommit) {
                return Ok(End::Cut);
            }
            // This connection is not cut: the server rolled back, or another connection committed
            // first and took the request. So forward the replies again.
            if message.is_committed() || message.is_rolled_back() {
                state.holds_replies.store(false, SeqCst);
            }
            complete += length;
        }
        if complete > 0 {
            state.has_replied.store(true, SeqCst);
        }
        if state.holds_replies.load(SeqCst) {
            continue;
        }
        client.write_all(&received[..complete]).await?;
        received.drain(..complete);
    }
}
