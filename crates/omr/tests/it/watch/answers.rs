//! Answers of every kind: wrong ones, late ones, redirects, chunks, and none at all.

use std::net::TcpListener;

use super::ec2::{ACTION, imds, instance_action};
use super::metadata::{Metadata, Reply, has, ok, path, status};
use super::{once, root};
use crate::common::command;

/// The possible failures of a server, each with the expected message.
#[test]
fn an_invalid_answer_is_an_error_and_sends_nothing() {
    type Case = (&'static str, fn() -> Reply, &'static str);
    let cases: [Case; 12] = [
        ("garbage", || Reply::Raw(b"\x00\xff\x80garbage\r\n\r\n".to_vec()), "not an answer of HTTP"),
        ("wrong content", || ok("<html>login</html>"), "instance-action: expected value"),
        ("500", || status(500), "500"),
        (
            "oversized body",
            || Reply::Raw([b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[b'x'; 100_000]].concat()),
            "longer than 64 KiB",
        ),
        (
            "oversized length",
            || Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec()),
            "longer than 64 KiB",
        ),
        (
            "oversized head",
            || Reply::Raw([b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'x'; 100_000]].concat()),
            "longer than 64 KiB",
        ),
        (
            "too many headers",
            || Reply::Raw([b"HTTP/1.1 200 OK\r\n".as_slice(), &b"a: b\r\n".repeat(100), b"\r\n"].concat()),
            "too many headers",
        ),
        (
            "cut off",
            || Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc".to_vec()),
            "in the middle of the answer",
        ),
        (
            "cut off chunks",
            || Reply::Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc".to_vec()),
            "in the middle of the answer",
        ),
        ("nothing", || Reply::Raw(Vec::new()), "in the middle of the answer"),
        ("silence", || Reply::Silence, "no answer in time"),
        ("slow drip", || Reply::Drip("HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"), "no answer in time"),
    ];
    let threads = cases.map(|(name, reply, expected)| {
        std::thread::spawn(move || {
            let server = Metadata::start(move |head, _| match path(head) {
                "/latest/api/token" => ok("T"),
                ACTION => reply(),
                _ => status(404),
            });
            let (code, requests, log) = once(&server.root("ec2"));
            assert_eq!((code, requests), (1, vec![]), "{name}: {log}");
            assert!(log.contains(expected) && log.contains("ec2"), "{name}: {log}");
        })
    });
    for thread in threads {
        thread.join().expect("as expected");
    }
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Metadata::start(|_, _| ok("T"));
    let location: &'static str = format!("Location: http://{}/latest\r\n", elsewhere.address).leak();
    for code in [301, 302, 307, 308] {
        let server = Metadata::start(move |_, _| Reply::Answer(code, location, String::new()));
        let (exit, _, log) = once(&server.root("ec2"));
        assert_eq!(exit, 1);
        assert!(log.contains(&code.to_string()), "{log}");
    }
    assert_eq!(elsewhere.asked(), [""; 0]);
}

#[test]
fn a_proxy_of_the_environment_is_not_used() {
    let proxy = Metadata::start(|_, _| status(500));
    let server = Metadata::start(|head, _| imds(head, |_| None));
    let root = server.root("ec2");
    let mut command = command(root.path(), &["watch", "--once", "--dry-run"]);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, format!("http://{}", proxy.address));
    }
    assert_eq!(command.output().expect("omr runs").status.code(), Some(0));
    assert_eq!(proxy.asked(), [""; 0]);
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let (code, _, log) = once(&root(&format!("provider = 'ec2'\nendpoint = 'http://{address}'")));
    assert_eq!(code, 1);
    let refused = format!("ec2 instance-action: PUT http://{address}/latest/api/token: connect: Connection refused");
    assert!(log.contains(&refused), "{log}");
}

#[test]
fn an_answer_in_chunks_is_an_answer() {
    let server = Metadata::start(|head, _| match path(head) {
        "/latest/api/token" => Reply::Raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nTOK\r\n2\r\nEN\r\n0\r\n\r\n".to_vec(),
        ),
        ACTION if has(head, "X-aws-ec2-metadata-token", "TOKEN") => {
            let body = instance_action("stop", 60).unwrap_or_default();
            let (a, b) = body.split_at(7);
            let chunks = format!("{:x}\r\n{a}\r\n{:X};ext=1\r\n{b}\r\n0\r\n\r\n", a.len(), b.len());
            Reply::Raw(format!("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n{chunks}").into_bytes())
        }
        _ => status(404),
    });
    let (code, requests, log) = once(&server.root("ec2"));
    assert_eq!((code, requests.len()), (0, 1), "{log}");
}
