//! Who may ask: hosts, methods and tokens.

use std::fs::File;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use constant_time_eq::constant_time_eq;
use hmac_sha256::HMAC;
use hyper::body::Body as _;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST, HeaderMap, TRANSFER_ENCODING};
use hyper::http::uri::Authority;
use hyper::{Method, Request, StatusCode};

use crate::answer::{Answer, error};

/// The shortest token that a file may have, in bytes.
const SHORTEST: usize = 16;
/// The longest one.
const LONGEST: usize = 1024;
/// Makes a file with a token.
const NEW_FILE: &str = "(umask 077; openssl rand -hex 32 > NEW_FILE)";

/// The guard of one socket.
#[derive(Debug)]
pub struct Guard {
    /// Hosts that a browser may ask for. A page of another site that has its name lead here asks for
    /// that name (DNS rebinding).
    hosts: Vec<String>,
    keys: Keys,
}

/// What opens the door.
#[derive(Debug)]
enum Keys {
    /// The mode of the socket decides who may connect.
    Socket,
    /// A token that works once and becomes a cookie; `None`: it is used up.
    Once(Mutex<Option<String>>, Cookie),
    /// A token that works always.
    Always(String, Cookie),
}

#[derive(Debug)]
struct Cookie {
    name: String,
    value: String,
}

impl Cookie {
    fn new(port: u16, value: String) -> Self {
        // Cookies know no ports: each server has a name of its own.
        Cookie { name: format!("omr-web-{port}"), value }
    }

    /// The cookie for the token of a file: the same each time, so a browser stays in when omr web
    /// starts again. The token cannot be told from it.
    fn of_token(port: u16, token: &str) -> Self {
        Cookie::new(port, hexadecimal(&HMAC::mac("omr web: cookie", token)))
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.name && is_same(value, &self.value))
    }

    fn set(&self) -> String {
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.name, self.value)
    }
}

impl Guard {
    /// The guard of a Unix socket.
    pub fn of_socket(hosts: &[String]) -> Self {
        Guard { hosts: allowed(hosts, None), keys: Keys::Socket }
    }

    /// The guard of an address, with the token of a file.
    pub fn of_address(address: SocketAddr, hosts: &[String], token: String) -> Self {
        let cookie = Cookie::of_token(address.port(), &token);
        Guard { hosts: allowed(hosts, Some(address.ip())), keys: Keys::Always(token, cookie) }
    }

    /// The guard of an address, with a token that works once. Returns the token, too.
    pub fn of_address_once(address: SocketAddr, hosts: &[String]) -> Result<(Self, String)> {
        let token = random()?;
        let keys = Keys::Once(Mutex::new(Some(token.clone())), Cookie::new(address.port(), random()?));
        Ok((Guard { hosts: allowed(hosts, Some(address.ip())), keys }, token))
    }

    /// Returns the answer that refuses a request; `None`: the request may pass.
    pub fn refuse(&self, request: &Request<Incoming>) -> Option<Answer> {
        self.refuse_host(request).or_else(|| refuse_method(request)).or_else(|| self.refuse_keys(request))
    }

    fn refuse_host(&self, request: &Request<Incoming>) -> Option<Answer> {
        let named = request.headers().get_all(HOST);
        let mut named: Vec<Authority> = named.iter().filter_map(|host| host.as_bytes().try_into().ok()).collect();
        if named.len() != 1 || request.headers().get_all(HOST).iter().count() != 1 {
            return Some(error(StatusCode::BAD_REQUEST, "expected one header Host with a name").and_close());
        }
        // A request line with a host, as for a proxy.
        named.extend(request.uri().authority().cloned());
        let is_allowed = |of: &Authority| {
            !of.as_str().contains('@') && self.hosts.iter().any(|host| of.host().eq_ignore_ascii_case(host))
        };
        if named.iter().all(is_allowed) {
            return None;
        }
        let text = "this name is not one of omr web's; start it with --host NAME to allow another name";
        Some(error(StatusCode::MISDIRECTED_REQUEST, text).and_close())
    }

    fn refuse_keys(&self, request: &Request<Incoming>) -> Option<Answer> {
        let headers = request.headers();
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let is_first = request.method() == Method::GET && request.uri().path() == "/";
        let query = request.uri().query().filter(|_| is_first).unwrap_or_default();
        let in_query = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "token");
        let in_query = in_query.map(|(_, value)| value);
        let enters = |cookie: &Cookie| {
            let answer = Answer::new(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", &b""[..]);
            Some(answer.with("location", "/").with("set-cookie", &cookie.set()))
        };
        let says = match &self.keys {
            Keys::Socket => return None,
            Keys::Once(_, cookie) | Keys::Always(_, cookie) if cookie.is_in(headers) => {
                // Without the token in the address, which people copy.
                return if in_query.is_some() { enters(cookie) } else { None };
            }
            Keys::Once(token, cookie) => {
                let mut token = token.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match (in_query, token.as_ref()) {
                    (Some(given), Some(wanted)) if is_same(&given, wanted) => {
                        *token = None;
                        return enters(cookie);
                    }
                    (_, None) => "the address that omr web printed was used; start omr web again for another one",
                    _ => "open the address that omr web printed, which works once",
                }
            }
            Keys::Always(token, _) if bearer.is_some_and(|given| is_same(given, token)) => return None,
            Keys::Always(token, cookie) if in_query.is_some_and(|given| is_same(&given, token)) => {
                return enters(cookie);
            }
            Keys::Always(..) => {
                "send the token of --token-file as \"Authorization: Bearer TOKEN\", or open /?token=TOKEN in a browser"
            }
        };
        Some(error(StatusCode::UNAUTHORIZED, says).with("www-authenticate", "Bearer").and_close())
    }
}

/// There are questions only, and none of them has a body.
fn refuse_method(request: &Request<Incoming>) -> Option<Answer> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let answer = error(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD: omr web changes nothing");
        return Some(answer.with("allow", "GET, HEAD").and_close());
    }
    let headers = request.headers();
    let is_empty = headers.get(CONTENT_LENGTH).is_none_or(|length| length == "0");
    let has_body = !is_empty || headers.contains_key(TRANSFER_ENCODING) || !request.body().is_end_stream();
    has_body.then(|| error(StatusCode::PAYLOAD_TOO_LARGE, "a request has no body here").and_close())
}

fn allowed(hosts: &[String], address: Option<IpAddr>) -> Vec<String> {
    let address = address.map(|address| match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    });
    let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
    own.into_iter().chain(address).chain(hosts.iter().cloned()).collect()
}

/// Compares in a time that does not depend on where the two differ.
fn is_same(given: &str, wanted: &str) -> bool {
    constant_time_eq(given.as_bytes(), wanted.as_bytes())
}

/// 256 random bits in hexadecimal.
fn random() -> Result<String> {
    let mut bytes = [0u8; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if filled.context("random bytes")? != bytes.len() {
        bail!("the kernel gave fewer random bytes than were asked for");
    }
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a token from a file. Others must not be able to read the file, nor its group to write it.
pub fn read_token(path: &Path) -> Result<String> {
    let name = path.display();
    let file = File::open(path).with_context(|| format!("open {name}"))?;
    let metadata = file.metadata().with_context(|| format!("read {name}"))?;
    let mode = metadata.permissions().mode() & 0o777;
    if !metadata.is_file() {
        bail!("{name}: expected a regular file with a token");
    }
    if mode & 0o027 != 0 {
        // No chmod is proposed: others may have read the token, and the file may be another one than
        // was meant.
        bail!(
            "{name}: its mode is {mode:03o}, so others can read or change the token; make a file with a new one: \
             {NEW_FILE}"
        );
    }
    let mut text = String::new();
    file.take(LONGEST as u64 + 2).read_to_string(&mut text).with_context(|| format!("read {name}"))?;
    let token = text.trim();
    if !(SHORTEST..=LONGEST).contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        bail!(
            "{name}: expected one line with a token of {SHORTEST} to {LONGEST} ASCII characters without spaces; \
             make a file with one: {NEW_FILE}"
        );
    }
    Ok(token.to_owned())
}

/// Parses the name of a host for `--host`.
pub fn parse_host(text: &str) -> Result<String, String> {
    let wrong = || "expected a name without a port, such as omr.example.org".to_owned();
    let authority: Authority = text.parse().map_err(|_| wrong())?;
    if authority.host() == text && !text.is_empty() { Ok(text.to_owned()) } else { Err(wrong()) }
}
