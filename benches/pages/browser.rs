//! A browser, as far as it takes time here.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use anyhow::{Context, Result, bail};

pub(crate) struct Browser {
    address: String,
    cookie: String,
}

impl Browser {
    /// Signs in with a sign-in link.
    pub(crate) fn sign_in(link: &str) -> Result<Self> {
        let (address, code) = link
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once("/sign-in?code="))
            .with_context(|| format!("{link} is no link on loopback"))?;
        let mut browser = Self { address: address.to_owned(), cookie: String::new() };
        let (head, _) = browser.ask("POST", "/sign-in", &format!("code={code}"))?;
        let cookie = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("set-cookie").then(|| value.trim().split(';').next().map(str::to_owned))?
        });
        browser.cookie = cookie.with_context(|| format!("no session: {head}"))?;
        Ok(browser)
    }

    /// Requests a page.
    pub(crate) fn get(&self, path: &str) -> Result<String> {
        let (head, body) = self.ask("GET", path, "")?;
        if head.split(' ').nth(1) != Some("200") {
            bail!("{path}: {head}\n{body}");
        }
        Ok(body)
    }

    /// Sends a request on its own connection.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<(String, String)> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        let (address, cookie, length) = (&self.address, &self.cookie, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nOrigin: http://{address}\r\nCookie: {cookie}\r\nConnection: close\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        Ok((head.to_owned(), body.to_owned()))
    }
}
