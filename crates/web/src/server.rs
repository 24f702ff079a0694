//! Connections and their limits.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::StatusCode;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use omr_base::exit::Exit;
use omr_base::signals::SignalFd;
use omr_base::{memory, paths};
use omr_kernel::clock;
use omr_units::Monotonic;
use rustix::event::{PollFd, PollFlags, poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Notify;
use tokio_io_timeout::TimeoutStream;

use crate::Options;
use crate::answer::error;
use crate::guard::{self, Guard};
use crate::listen::{self, Listener};
use crate::live::Live;
use crate::records::Records;
use crate::routes::{self, Sources};

/// The most connections that are served.
const MOST_CONNECTIONS: usize = 64;
/// As many more are told that there is no room. Those beyond are closed at once.
const MOST_REFUSED: usize = 16;
/// The longest head of a request, in bytes.
const LONGEST_HEAD: usize = 8 << 10;
/// The most headers of a request.
const MOST_HEADERS: usize = 64;
/// A head comes within this time. A connection without a request ends after it, too.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// A reader takes something within this time.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// After an error of the listening socket (no descriptors are left).
const REST: Duration = Duration::from_millis(200);

/// Starts a thread that ends with the program.
pub fn spawn_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    // Small stacks: nothing here is deep.
    let thread = std::thread::Builder::new().name(name.into()).stack_size(512 << 10);
    thread.spawn(run).context("start a thread")?;
    Ok(())
}

/// Serves until a signal comes, or until nobody was connected for the time of [`Options::idle`].
/// `say` tells a person the addresses to open.
pub fn run(root: &Path, options: &Options, say: impl Fn(&str) -> Result<()>) -> Result<Exit> {
    memory::return_soon();
    // A write to a client that has gone is an error, and not the end of the program.
    // SAFETY: called before any thread exists; SIG_IGN is a valid disposition for SIGPIPE.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let token = options.token_file.as_deref().map(guard::read_token).transpose();
    let token = token.map_err(|err| Exit::Usage.error(format!("{err:#}")))?;
    let (listeners, _remove) = match &options.listen {
        Some(listen) => {
            if let listen::Listen::Address(address) = listen
                && !address.ip().is_loopback()
                && token.is_none()
            {
                let text = format!(
                    "--listen {address}: others can reach this address, so it needs --token-file FILE; or listen on \
                     127.0.0.1:{}",
                    address.port()
                );
                return Err(Exit::Usage.error(text));
            }
            let (listener, remove) = listen::open(listen)?;
            (vec![listener], remove)
        }
        None => (listen::by_systemd()?, None),
    };
    let mut doors = Vec::new();
    for listener in listeners {
        let guard = match (&listener, &token) {
            (Listener::Unix(_), _) => Guard::of_socket(&options.hosts),
            (Listener::Tcp(_, address), Some(token)) => {
                say(&format!("http://{address}/"))?;
                Guard::of_address(*address, &options.hosts, token.clone())
            }
            (Listener::Tcp(_, address), None) if options.listen.is_some() => {
                let (guard, token) = Guard::of_address_once(*address, &options.hosts)?;
                say(&format!("http://{address}/?token={token}"))?;
                guard
            }
            (Listener::Tcp(_, address), None) => {
                let text = format!(
                    "systemd listens on {address}, which everybody on this machine can reach; it needs --token-file FILE"
                );
                return Err(Exit::Usage.error(text));
            }
        };
        doors.push((listener, Arc::new(guard)));
    }
    // Before any thread exists, so that all of them have these signals blocked.
    let signals = SignalFd::block(&[libc::SIGTERM, libc::SIGINT])?;
    let live = Live::start(paths::socket(root))?;
    let records = Records::start(root, options.objective.clone())?;
    let sources = Arc::new(Sources { live, records });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the event loop")?;
    runtime.block_on(serve(doors, sources, signals, options.idle))?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(Exit::Done)
}

type Doors = Vec<(Listener, Arc<Guard>)>;

async fn serve(doors: Doors, sources: Arc<Sources>, signals: SignalFd, idle: Option<Duration>) -> Result<()> {
    let connections = Arc::new(Connections::default());
    for (listener, guard) in doors {
        let acceptor = Acceptor { sources: Arc::clone(&sources), guard, connections: Arc::clone(&connections) };
        match listener {
            Listener::Tcp(listener, _) => {
                listener.set_nonblocking(true)?;
                tokio::spawn(acceptor.accept_tcp(TcpListener::from_std(listener)?));
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                tokio::spawn(acceptor.accept_unix(UnixListener::from_std(listener)?));
            }
        }
    }
    tokio::spawn(async move { sources.live.tell().await });
    let end = Arc::new(Notify::new());
    if let Some(idle) = idle {
        let end = Arc::clone(&end);
        tokio::spawn(async move {
            connections.wait_idle(idle).await;
            end.notify_one();
        });
    }
    let told = Arc::clone(&end);
    spawn_thread("omr-web-signals", move || {
        while signals.read().is_none() {
            let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
        }
        told.notify_one();
    })?;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    end.notified().await;
    Ok(())
}

/// The connections that there are.
#[derive(Default)]
struct Connections {
    open: AtomicUsize,
    refused: AtomicUsize,
    last: Mutex<Option<Monotonic>>,
}

impl Connections {
    async fn wait_idle(&self, idle: Duration) {
        let last = || *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let began = clock::read_monotonic();
        loop {
            let silent = clock::read_monotonic().since(last().unwrap_or(began));
            if self.open.load(Ordering::Relaxed) > 0 {
                tokio::time::sleep(idle).await;
            } else if silent < idle {
                tokio::time::sleep(idle - silent).await;
            } else {
                return;
            }
        }
    }
}

/// A place among the connections of a kind, which is free again when this is dropped.
struct Place(Arc<Connections>, fn(&Connections) -> &AtomicUsize);

impl Place {
    fn take(connections: &Arc<Connections>, of: fn(&Connections) -> &AtomicUsize, most: usize) -> Option<Self> {
        let taken = of(connections).fetch_add(1, Ordering::Relaxed);
        let place = Place(Arc::clone(connections), of);
        (taken < most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.1(&self.0).fetch_sub(1, Ordering::Relaxed);
        *self.0.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(clock::read_monotonic());
    }
}

struct Acceptor {
    sources: Arc<Sources>,
    guard: Arc<Guard>,
    connections: Arc<Connections>,
}

trait Stream: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

impl Acceptor {
    async fn accept_tcp(self, listener: TcpListener) {
        loop {
            let stream = listener.accept().await.map(|(stream, _)| {
                // Events are small, and wait for nothing.
                let _ = stream.set_nodelay(true);
                stream
            });
            self.take_in(stream).await;
        }
    }

    async fn accept_unix(self, listener: UnixListener) {
        loop {
            self.take_in(listener.accept().await.map(|(stream, _)| stream)).await;
        }
    }

    async fn take_in(&self, stream: io::Result<impl Stream + 'static>) {
        let Ok(stream) = stream else { return tokio::time::sleep(REST).await };
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(READ_WITHIN));
        let stream: Pin<Box<dyn Stream>> = Box::pin(stream);
        if let Some(place) = Place::take(&self.connections, |of| &of.open, MOST_CONNECTIONS) {
            tokio::spawn(serve_one(stream, place, Some((Arc::clone(&self.sources), Arc::clone(&self.guard)))));
        } else if let Some(place) = Place::take(&self.connections, |of| &of.refused, MOST_REFUSED) {
            tokio::spawn(serve_one(stream, place, None));
        }
    }
}

/// Serves a connection; without sources it is told that there is no room.
async fn serve_one(stream: Pin<Box<dyn Stream>>, _place: Place, sources: Option<(Arc<Sources>, Arc<Guard>)>) {
    let service = service_fn(move |request| {
        let sources = sources.clone();
        async move {
            let answer = match sources {
                Some((sources, guard)) => routes::answer(sources, guard, request).await,
                None => {
                    let text = format!("omr web serves {MOST_CONNECTIONS} connections, and all are taken");
                    error(StatusCode::SERVICE_UNAVAILABLE, &text).with("retry-after", "5").and_close()
                }
            };
            Ok::<_, std::convert::Infallible>(answer.into_response())
        }
    });
    // An error is the end of the connection: a client that went away, or that is slow or hostile.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(LONGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
