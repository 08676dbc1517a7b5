"""Does an operator's work in the dashboard, in Chromium, and ends with 1 if something is not as promised.

drive.py SCENE ADDRESS [ARGUMENT…]; 77: there is no browser to do it in. It waits for what the page shows, never for a time.
"""

import base64
import datetime
import json
import os
import re
import shutil
import signal
import socket
import sys
import threading
import urllib.request

try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    print("playwright is missing: pip install playwright axe-playwright-python")
    sys.exit(77)

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]
WITHIN = 60_000
expect.set_options(timeout=WITHIN)


def axe_source():
    try:
        import axe_playwright_python
    except ImportError:
        print("axe is missing, pages are not judged by it: pip install axe-playwright-python")
        return None
    with open(os.path.join(os.path.dirname(axe_playwright_python.__file__), "axe.min.js"), encoding="utf-8") as file:
        return file.read()


AXE = axe_source()


class Dashboard:
    """A tab, and what it may not have done by the end."""

    def __init__(self, browser, address, beside=None, **options):
        self.address = address
        self.context = beside.context if beside else browser.new_context(reduced_motion="reduce", **options)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.page.set_default_timeout(WITHIN)
        self.wrong = []
        # A run may end between two questions, and its payload is gone then: the browser reports that by itself.
        self.allowed = ["status of 404.*/payload"]
        self.page.on("console", self.console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error} {error.stack}"))
        self.page.on("request", self.request)
        self.page.add_init_script(
            "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.violatedDirective + ' ' + e.blockedURI))"
        )

    def console(self, message):
        if message.type in ("error", "warning"):
            text = f"console: {message.text} {message.location.get('url', '')}"
            if not any(re.search(pattern, text) for pattern in self.allowed):
                self.wrong.append(text)

    def request(self, request):
        if not request.url.startswith((self.address, "blob:", "data:")):
            self.wrong.append(f"foreign request: {request.url}")

    def go(self, route, heading):
        self.page.goto(f"{self.address}#/{route}")
        expect(self.page.locator("main h1")).to_contain_text(heading)
        return self.page

    def button(self, name, within=None):
        return (within or self.page).get_by_role("button", name=name, exact=True)

    def confirm(self, name):
        self.page.locator("dialog footer").get_by_role("button", name=re.compile(name)).click()
        expect(self.page.locator("dialog")).to_have_count(0)

    def press(self, name):
        self.page.locator("dialog footer").get_by_role("button", name=name, exact=True).click()

    def toast(self, text):
        expect(self.page.locator(".toasts")).to_contain_text(text)

    def judge(self, name):
        """Axe finds nothing, in both themes, and nothing is wider than the window."""
        if AXE:
            for theme in ("light", "dark"):
                self.page.emulate_media(color_scheme=theme)
                found = self.page.evaluate(AXE + "; axe.run({resultTypes: ['violations']})")
                for one in found["violations"]:
                    nodes = "; ".join(node["html"][:160] + " " + node["failureSummary"][:200] for node in one["nodes"][:3])
                    self.wrong.append(f"axe on {name}, {theme}: {one['id']}: {one['help']}: {nodes}")
        wide = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wide > 0:
            self.wrong.append(f"{name} is {wide} px wider than the window")

    def has_room_for_its_menu(self, name):
        menu = self.page.locator("details.menu summary")
        if not menu.count():
            return
        menu.click()
        for width in (768, 360):
            self.page.set_viewport_size({"width": width, "height": 844})
            box = self.page.locator(".popup").bounding_box()
            if box["x"] < 0 or box["x"] + box["width"] > width:
                self.wrong.append(f"the menu of {name} at {width} px is at {box}")
        menu.click()

    def close(self):
        self.context.close()
        return self.wrong


def pump(one, other):
    """What one sends, the other gets; both end together."""
    try:
        while data := one.recv(65536):
            other.sendall(data)
    except OSError:
        pass
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def balancer(addresses):
    """Its own address: each connection goes to the first of these nodes that takes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def taken():
        while True:
            browser, _ = listener.accept()
            for address in addresses:
                try:
                    node = socket.create_connection(re.search(r"//([\d.]+):(\d+)", address).groups())
                except OSError:
                    continue
                threading.Thread(target=pump, args=(browser, node), daemon=True).start()
                threading.Thread(target=pump, args=(node, browser), daemon=True).start()
                break
            else:
                browser.close()

    threading.Thread(target=taken, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/"


def raw(address, path):
    with urllib.request.urlopen(address + path) as answer:
        return answer.read().decode()


def ask(address, path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def later(seconds):
    at = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def answered_late(tab):
    """A list that was answered late, or not at all, is soon asked for again."""
    page, lists, held = tab.page, re.compile(r"/v1/queues\?"), []
    tab.allowed.append("status of 503")
    page.clock.install()
    tab.go("queues", "Queues")
    expect(page.locator("[aria-busy]")).to_have_count(0)
    page.route(lists, lambda route: held.append(route))

    def asked_within(milliseconds):
        with page.expect_request(lists, timeout=15_000):
            page.clock.fast_forward(milliseconds)
        page.clock.fast_forward(9_000)

    asked_within(31_000)
    held.pop().fulfill(status=503)
    expect(page.locator(".live")).to_contain_text("Stale")
    asked_within(3_000)
    held.pop().continue_()
    expect(page.locator(".live")).to_have_text("Live")
    asked_within(31_000)


def work(browser, address):
    tab = Dashboard(browser, address, viewport={"width": 1280, "height": 860})
    page = tab.page

    tab.go("", "Overview")
    expect(page.locator(".tiles")).to_contain_text("Waiting")

    # It fails for good; the page that is open says so by itself.
    run = ask(address, "v1/jobs", {"type": "fail", "payload": {"times": 1, "n": 12345678901234567890}, "max_attempts": 3, "delay_ms": 3600_000})["run_id"]
    page.keyboard.press("/")
    page.keyboard.type(run)
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_contain_text("scheduled")
    expect(page.locator(".banner")).to_contain_text("waits for")
    tab.button("Run now").click()
    expect(page.locator("main h1")).to_contain_text("completed")
    expect(page.locator(".timeline")).to_contain_text("waits for the next attempt")
    expect(page.locator(".timeline")).to_contain_text("Attempt 2")

    text = '{"times": 1,\r\n"kind": "permanent",\r\n"big": 12345678901234567890.10}'
    dead = ask(address, "v1/jobs", {"type": "fail", "payload_base64": base64.b64encode(text.encode()).decode()})["run_id"]
    tab.go("dlq", "Dead letters")
    expect(page.locator("main")).to_contain_text("attempt # fails as asked")
    expect(page.get_by_role("img", name="fail, by hour: 1 in 24 hours, at most 1 in one, 1 in the last")).to_be_visible()
    page.locator(f"a.row-link[title='{dead}']").last.click()
    expect(page.locator("main h1")).to_contain_text("dead")
    expect(page.locator(".source pre").last).to_contain_text("permanent")
    tab.button("Replay").click()
    payload = page.locator("dialog textarea[name=payload]")
    expect(page.locator("dialog .changes")).to_have_count(0)
    page.locator("dialog textarea[name=headers]").fill("Shop-Note: <b>again</b>")
    # That a form has line ends of its own changes no payload.
    expect(page.locator("dialog .changes")).to_have_count(1)
    payload.fill('{"times": 0, "big": 12345678901234567890.10}')
    of_payload, of_headers = [page.locator("dialog .changes", has_text=name) for name in ("Payload", "Headers")]
    expect(of_payload.locator("del").first).to_contain_text('"times": 1')
    expect(of_payload.locator("ins").first).to_contain_text('"times": 0')
    expect(of_payload.locator("pre").last).to_contain_text("12345678901234567890.10")
    expect(of_headers.locator("ins")).to_have_text("Shop-Note: <b>again</b>")
    expect(page.locator("dialog .changes")).to_have_count(2)
    tab.judge("a replay with changes")
    tab.confirm("Replay")
    expect(page.locator("main h1")).to_contain_text("completed")
    expect(page.locator(".facts")).to_contain_text("round 2")

    # Its trace is looked at elsewhere.
    trace = "0af7651916cd43dd8448eb211c80319c"
    traced = ask(address, "v1/jobs", {"type": "echo", "headers": {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}})["run_id"]
    tab.go(f"run/default/{traced}", traced)
    link = page.get_by_role("link", name=trace)
    expect(link).to_have_attribute("href", f"https://traces.example/trace/{trace}?of=longshore")
    expect(link).to_have_attribute("rel", "noopener noreferrer")

    # What is copied names one tenant, also while all are shown.
    for route, heading, words in ((f"run/default/{traced}", traced, f"longshore why {traced}"), ("submit", "Submit", "longshore submit echo '{}'")):
        tab.go(route, heading)
        page.locator("details.menu summary").click()
        page.get_by_role("button", name=re.compile("^Copy as command")).click()
        tab.toast("Copy as command: done")
        if (copied := page.evaluate("navigator.clipboard.readText()")) != words:
            tab.wrong.append(f"the command of {route} is {copied}")

    # An idempotency key leads to its run, whatever is in it.
    keyed = ask(address, "v1/jobs", {"type": "echo", "idempotency_key": "order/17 é"})["run_id"]
    page.keyboard.press("/")
    page.keyboard.type("order/17 é")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_contain_text(keyed)
    page.keyboard.press("/")
    page.keyboard.type("order/18 é")
    page.keyboard.press("Enter")
    tab.toast("has the id or key order/18 é")

    # Foreign text is text.
    name = "x" * 80 + str(os.getpid())
    hostile = ask(address, "v1/jobs", {"type": "hostile.job", "run_id": name, "tags": ["<b>bold</b>"], "payload": {"a": "<img src=x onerror=alert(1)>"}})["run_id"]
    tab.go(f"run/default/{hostile}", hostile)
    expect(page.locator("main h1")).to_contain_text("dead")
    expect(page.locator(".failure-card pre")).to_contain_text("<img src=x onerror=")
    expect(page.get_by_role("table", name="Finished steps")).to_contain_text("charge")
    expect(page.locator(".failure-card pre")).to_contain_text("⟨U+202E⟩gnp.")
    expect(page.locator(".facts").first).to_contain_text("<b>bold</b>")
    expect(page.locator("main img, main script, main b")).to_have_count(0)
    tab.judge("a run")
    for route, heading in (("runs", "Runs"), ("dlq", "Dead letters"), ("", "Overview")):
        tab.go(route, heading)
        expect(page.locator("main")).to_contain_text("<img src=x onerror=")
        expect(page.locator("main img, main script, main b")).to_have_count(0)
        tab.judge(heading)
    if "owned" in page.title():
        tab.wrong.append("a foreign script ran")

    # A queue is paused, keeps its jobs, and goes on.
    tab.go("queues", "Queues")
    mail = page.locator("tr", has=page.get_by_role("link", name="mail", exact=True))
    tab.button("Pause", mail).click()
    page.get_by_label("Reason").fill("INC-7: é, mail is ill")
    tab.confirm("Pause")
    expect(mail).to_contain_text("paused")
    expect(page.locator(".because")).to_contain_text("INC-7: é, mail is ill")
    tab.judge("a page with a reason")
    waiting = [ask(address, "v1/jobs", {"type": "noop", "queue": "mail"})["run_id"] for _ in range(3)]
    tab.judge("queues")
    expect(mail.locator("td.num", has_text=re.compile("^3$"))).to_be_visible()
    tab.button("Details", mail).click()
    expect(page.locator("dialog").get_by_role("table", name=re.compile("(Waiting|Put off) in mail")).locator("tbody tr", has_text="3")).to_be_visible()
    tab.button("Close", page.locator("dialog")).click()
    ask(address, "v1/jobs", {"type": "sleep", "queue": "main", "payload": {"ms": 600_000}})
    tab.button("Details", page.locator("tr", has=page.get_by_role("link", name="main", exact=True))).click()
    shares = page.locator("dialog").get_by_role("table", name="Shares of main")
    expect(shares.locator("tbody tr")).to_contain_text("default")
    expect(shares.locator("tbody tr")).to_contain_text("100.0 %")
    tab.judge("a queue's details")
    tab.button("Close", page.locator("dialog")).click()
    tab.go("run/default/" + waiting[0], waiting[0])
    expect(page.locator(".banner")).to_contain_text("paused")
    tab.button("Cancel").click()
    tab.confirm("Cancel the run")
    expect(page.locator("main h1")).to_contain_text("cancelled")

    # By keyboard alone: two are selected and cancelled.
    tab.go("runs?queue=mail&state=enqueued", "Runs")
    expect(page.locator("tbody tr")).to_have_count(2)
    # They wait for a worker, not for their time.
    expect(tab.button("Cancel", page.locator(".selection"))).to_be_visible()
    expect(tab.button("Run now", page.locator(".selection"))).to_have_count(0)
    for key in "jxjx":
        page.keyboard.press(key)
    expect(page.locator(".selection")).to_contain_text("2 selected")
    tab.button("Cancel", page.locator(".selection")).click()
    tab.confirm("Cancel 2")
    expect(page.locator(".bulk")).to_contain_text("2 of 2 done")
    expect(page.locator("main .empty")).to_contain_text("No run fits")
    tab.judge("an empty list")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.locator("main h1")).to_contain_text("Queues")
    tab.button("Resume", mail).click()
    tab.toast("mail is resumed")
    tab.button("Clear").click()
    expect(page.locator(".because")).to_have_count(0)
    expect(tab.button("Pause", mail)).to_be_visible()

    # A fault on purpose is in sight on every page, until it is ended.
    tab.go("faults", "Faults")
    expect(page.locator("main .empty")).to_contain_text("No fault is set")
    tab.button("Set a fault").click()
    page.locator("dialog input[name=type]").fill("email.send")
    page.locator("dialog select[name=kind]").select_option("latency")
    page.locator("dialog input[name=percent]").fill("20")
    tab.allowed.append("status of 400.*/faults")
    tab.press("Set it")
    expect(page.locator("dialog .error")).to_contain_text("delay_ms")
    page.locator("dialog input[name=delay]").fill("3000")
    tab.judge("the form of a fault")
    tab.confirm("Set it")
    fault = page.locator("tbody tr", has_text="email.send")
    expect(fault).to_contain_text("Its handler is called later. By 3 s.")
    expect(fault).to_contain_text("20 %")
    expect(fault).to_contain_text(re.compile("in (9|10) min"))
    tab.button("End", fault).click()
    expect(page.locator("main .empty")).to_contain_text("No fault is set")
    ask(address, "v1/faults", {"type": "email.send", "kind": "storm", "until": later(600)}, "PUT")
    expect(fault).to_contain_text("Every attempt fails")
    tab.judge("faults")
    for route, heading in (("queues", "Queues"), ("audit", "Audit"), ("submit", "Submit a job")):
        tab.go(route, heading)
        expect(page.locator(".faults")).to_contain_text("email.send meets storm until")
    tab.judge("a page with a fault")
    tab.go("faults", "Faults")
    tab.button("End all").click()
    expect(page.locator(".faults")).to_have_count(0)

    # The group of dead letters is discarded; a list says why it has nothing.
    tab.go("dlq?type=hostile.job", "Dead letters")
    tab.button("Discard", page.locator("table").first).click()
    tab.confirm("Discard")
    expect(page.locator("main .empty").first).to_contain_text("No dead letter fits")
    tab.allowed.append("status of 400")
    tab.go("runs?queue=no%20queue", "Runs")
    expect(page.locator(".failure")).to_contain_text("queue")

    # What is begun for one tenant stays with that tenant's, whatever the page shows meanwhile.
    def dies(tenant):
        job = {"type": "fail", "payload": {"times": 1, "kind": "permanent"}}
        return ask(address, f"v1/jobs?tenant={tenant}", job)["run_id"]

    mine, theirs = [dies("acme") for _ in range(3)], dies("globex")
    tab.go("dlq?type=fail&tenant=globex", "Dead letters")
    expect(page.get_by_role("table", name="Dead letters", exact=True).locator("tbody tr")).to_have_count(1)
    tab.go("dlq?type=fail&tenant=acme", "Dead letters")
    expect(page.get_by_role("table", name="Dead letters", exact=True).locator("tbody tr")).to_have_count(3)
    tab.button("Discard all").click()
    page.locator("dialog select[name=rate]").select_option("1")
    tab.confirm("Discard 3")
    tab.go("dlq?type=fail&tenant=globex", "Dead letters")
    expect(page.locator(".bulk")).to_contain_text("3 of 3 done")
    expect(page.locator(".bulk").get_by_role("button", name="Close")).to_be_visible()
    states = [ask(address, f"v1/runs/{run}?tenant={of}")["state"] for run, of in [(theirs, "globex")] + [(run, "acme") for run in mine]]
    if states != ["dead"] + ["discarded"] * 3:
        tab.wrong.append(f"an act on many left {states}")
    tab.button("Close", page.locator(".bulk")).click()

    # A job by the form, with a number that no browser can hold, followed until its end.
    tab.go("submit", "Submit a job")
    tab.judge("the form")
    page.get_by_label("Type").fill("echo")
    page.get_by_label("Payload (JSON)").fill('{"big": 12345678901234567890.10, "z": 1}')
    page.get_by_label("Tags").fill("=1+1, by-form")
    page.locator("form.card").get_by_role("button", name="Submit").click()
    expect(page.locator("main h1")).to_contain_text("completed")
    expect(page.locator(".card", has_text="Result").locator("pre").last).to_contain_text('"big": 12345678901234567890.10')
    expect(page.locator(".words")).to_be_visible()
    tab.go("runs?tag=by-form", "Runs")
    expect(page.locator("tbody tr")).to_have_count(1)
    with page.expect_download() as download:
        tab.button("CSV").click()
    with open(download.value.path(), encoding="utf-8") as file:
        if ",'=1+1 by-form," not in file.read():
            tab.wrong.append("a formula is left in the CSV file")

    # All that match are cancelled after a dry run has counted them.
    for _ in range(3):
        ask(address, "v1/jobs", {"type": "noop", "delay_ms": 3600_000, "tags": ["later"]})
    tab.go("runs?tag=later", "Runs")
    expect(page.locator("tbody tr")).to_have_count(3)
    tab.button("Cancel", page.locator(".selection")).click()
    expect(page.locator("dialog")).to_contain_text("Cancels 3 runs")
    expect(page.locator("dialog .sample li")).to_have_count(3)
    tab.judge("many are asked for")
    page.get_by_label("How fast").select_option("1")
    tab.confirm("Cancel 3")
    expect(page.locator(".bulk")).to_contain_text("3 of 3 done")
    calls = page.evaluate("performance.getEntriesByType('resource').filter((one) => one.name.includes('runs/cancel')).map((one) => one.startTime)")
    # The dry run, and one call for each, of which the last begins two seconds after the first, whatever the machine does.
    if len(calls) < 4 or calls[3] - calls[1] < 1_000:
        tab.wrong.append(f"three at one a second are cancelled by calls at {calls} ms")
    expect(page.locator("tbody .pill", has_text="cancelled")).to_have_count(3)
    tab.button("Close", page.locator(".bulk")).click()

    # What goes slowly can be stopped.
    slow = [ask(address, "v1/jobs", {"type": "noop", "delay_ms": 3600_000, "tags": ["slowly"]})["run_id"] for _ in range(12)]
    tab.go("runs?tag=slowly", "Runs")
    expect(page.locator("tbody tr")).to_have_count(12)
    # A selection is one of this list, and ends with it; what is done to all of a list keeps its state.
    for key in "jx":
        page.keyboard.press(key)
    expect(page.locator(".selection")).to_contain_text("1 selected")
    tab.go("runs?tag=slowly&state=scheduled", "Runs")
    expect(page.locator(".selection")).to_contain_text("All that match")
    with page.expect_request(re.compile("/v1/runs/run-now")) as asked:
        tab.button("Run now", page.locator(".selection")).click()
    if asked.value.post_data_json.get("state") != "scheduled":
        tab.wrong.append(f"of scheduled runs alone is asked for {asked.value.post_data_json}")
    expect(page.locator("dialog")).to_contain_text("tenant _all, state scheduled, tag slowly")
    tab.button("Cancel", page.locator("dialog")).click()
    tab.go("runs?tag=slowly", "Runs")
    tab.button("Run now", page.locator(".selection")).click()
    expect(page.locator("dialog .sample li")).to_have_count(10)
    page.get_by_label("How fast").select_option("1")
    tab.confirm("Start 12")
    expect(page.locator(".bulk")).to_contain_text("1 of 12 done")
    tab.button("Stop", page.locator(".bulk")).click()
    tab.button("Close", page.locator(".bulk")).click()
    expect(page.locator("tbody .pill", has_text="scheduled")).not_to_have_count(0)
    expect(page.locator("tbody .pill", has_text="completed")).not_to_have_count(0)
    assert any(ask(address, f"v1/runs/{run}")["state"] == "scheduled" for run in slow)

    # Schedules, limits, nodes, keys, audit, and events that stop with the pause.
    follows = {"type": "card", "payload": {"cents": 98765432109876543210}}
    ask(address, "v1/schedules/nightly", {"type": "echo", "cron": "0 30 2 * * MON-FRI", "time_zone": "Europe/Berlin", "then": follows}, "PUT")
    tab.go("schedules", "Schedules")
    nightly = page.locator("tr", has_text="nightly")
    page.get_by_label("Times").select_option("Asia/Tokyo")
    nightly.locator("details.next summary").focus()
    page.keyboard.press("Enter")
    due = nightly.get_by_role("table", name="The next times of nightly")
    expect(due.locator("th")).to_have_text(["Europe/Berlin", "Asia/Tokyo"])
    expect(due.locator("tbody tr")).to_have_count(5)
    expect(due.locator("td").first).to_contain_text(re.compile(r" 02:30:00 \+0[12]:00"))
    expect(due.locator("td").nth(1)).to_contain_text(re.compile(r" (09|10):30:00 \+09:00"))
    page.reload()
    expect(page.get_by_label("Times")).to_have_value("Asia/Tokyo")
    tab.button("Pause", nightly).click()
    expect(nightly).to_contain_text("paused")
    tab.button("Run now", nightly).click()
    expect(nightly.locator("a.row-link")).to_be_visible()
    expect(nightly).to_contain_text("at 02:30, Monday to Friday")
    def change_nightly():
        tab.button("Change", nightly).click()
        for name, value in (("cron", ""), ("time_zone", ""), ("every", "2h"), ("payload", '{"cents": 12345678901234567890}')):
            page.locator(f"dialog [name={name}]").fill(value)

    change_nightly()
    # Somebody else is quicker.
    ask(address, "v1/schedules/nightly/resume", {}, "POST")
    tab.allowed.append("status of 412.*/nightly")
    tab.press("Change it")
    expect(page.locator("dialog .error")).to_contain_text("changed")
    tab.button("Cancel", page.locator("dialog")).click()
    expect(nightly).not_to_contain_text("paused")
    change_nightly()
    tab.confirm("Change it")
    expect(nightly).to_contain_text("every 2h")
    changed = raw(address, "v1/schedules/nightly?reveal=true")
    assert all(number in changed for number in ("12345678901234567890", "98765432109876543210")), changed
    # That there is none of an id yet, is said by a 404.
    tab.allowed.append("status of 404.*/v1/(schedules|webhooks)/")

    def make(what, **fields):
        tab.button(f"Make a {what}").click()
        for name, value in fields.items():
            page.locator(f"dialog input[name={name}]").fill(value)

    def is_taken():
        tab.press("Make it")
        expect(page.locator("dialog .error")).to_contain_text("already")
        tab.button("Cancel", page.locator("dialog")).click()
        expect(page.locator("dialog")).to_have_count(0)

    make("schedule", id="hourly", type="echo", cron="5 * * * *")
    tab.confirm("Make it")
    expect(page.locator("tr", has_text="hourly")).to_contain_text("every hour at :05")
    make("schedule", id="hourly", type="echo", cron="6 * * * *")
    is_taken()
    assert "5 * * * *" in raw(address, "v1/schedules/hourly")
    tab.judge("schedules")
    tab.go("webhooks", "Webhooks")
    make("webhook", id="shop", url="http://127.0.0.1:9/hooks", events="dlq, completed", types="order.>")
    tab.press("Make it")
    expect(page.locator("dialog")).to_contain_text("whsec_")
    tab.button("Close", page.locator("dialog")).click()
    shop = page.locator("tr", has_text="shop")
    expect(shop).to_contain_text("dlq, completed")
    make("webhook", id="shop", url="http://127.0.0.1:9/other")
    is_taken()
    # The list is kept as it is, and somebody else changes the webhook: that stays.
    page.keyboard.press("p")
    expect(page.locator(".live")).to_have_text("Paused")
    ask(address, "v1/webhooks/shop", {"url": "http://127.0.0.1:9/moved"}, "PUT")
    tab.button("Pause", shop).click()
    expect(shop).to_contain_text("paused")
    expect(shop).to_contain_text("http://127.0.0.1:9/moved")
    page.keyboard.press("p")
    tab.button("Resume", shop).click()
    expect(shop).to_contain_text("on")
    tab.button("New secret", shop).click()
    tab.press("Make it")
    expect(page.locator("dialog")).to_contain_text("whsec_")
    tab.button("Close", page.locator("dialog")).click()
    tab.judge("webhooks")
    tab.button("Delete", shop).click()
    page.locator("dialog input[name=typed]").fill("shop")
    tab.confirm("Delete it")
    expect(page.locator("main")).to_contain_text("There is no webhook.")
    tab.go("limits", "Limits and breakers")
    limit = page.locator("tr", has_text="email.send")
    tab.button("Set", limit).click()
    page.locator("dialog input[name=rate]").fill("5")
    tab.confirm("Set")
    expect(limit).to_contain_text("set at run time")
    tab.judge("limits")
    tab.go("nodes", "Nodes")
    expect(page.locator("main .card h2").first).to_contain_text("running")
    expect(page.get_by_role("table", name="Remote handlers").locator("tr", has_text="hostile.job")).to_contain_text("4")
    parts = page.locator("details.parts")
    expect(parts).to_contain_text("none started again")
    parts.locator("summary").click()
    for part in ("committer", "for each queue (mail, main)", "scheduler", "worker"):
        expect(parts.locator("li", has_text=part).first).to_be_visible()
    tab.judge("nodes")
    tab.go("keys", "Keys")
    tab.button("Make a key").click()
    page.get_by_label("Name").fill("<i>shop</i>")
    tab.judge("a dialog")
    page.locator("dialog footer").get_by_role("button", name="Make it").click()
    expect(page.locator("dialog pre")).to_contain_text("ls_")
    tab.button("Close", page.locator("dialog")).click()
    expect(page.locator("tbody tr")).to_contain_text("<i>shop</i>")
    tab.judge("keys")
    tab.go("audit", "Audit")
    for action, reason in (("queues.pause", True), ("queues.resume", True), ("keys.create", False)):
        asked = page.locator("tbody tr", has_text=action)
        expect(asked).to_have_count(1)
        (expect(asked).to_contain_text if reason else expect(asked).not_to_contain_text)("INC-7: é, mail is ill")
    tab.judge("audit")

    # Of a list that is longer than is shown, the page says so; a breaker that has just opened is the last of its list.
    def cursor(route):
        return int((re.search(r"[?&]cursor=(\d+)", route.request.url) or "00")[1])

    def breakers(route):
        state = "open" if cursor(route) == 9 else "closed"
        one = {"tenant": "default", "type": f"late.{cursor(route)}", "state": state, "since": later(0)}
        route.fulfill(json={"breakers": [one], "cursor": str(cursor(route) + 1)})

    def groups(route):
        one = {"type": "t", "error_kind": "timeout", "count": 1, "first": later(0), "last": later(0), "example": {"run_id": "r", "tenant": "default"}}
        route.fulfill(json={"groups": [{**one, "pattern": f"p{n}", "fingerprint": str(n)} for n in range(50)]})

    def entries(route):
        if cursor(route) == 10:
            return held.append(route)
        one = {"at": later(0), "endpoint": "keys.create", "tenant": "default", "by": "key:1", "from": "http", "node": "n1", "outcome": {}}
        return route.fulfill(json={"entries": [{**one, "id": f"{cursor(route)}-{n}"} for n in range(60)], "cursor": str(cursor(route) + 1)})

    held = []
    lists = [(re.compile(rf"/v1/{name}\?"), answer) for name, answer in (("breakers", breakers), ("dlq-groups", groups), ("audit", entries))]
    for asked, answer in lists:
        page.route(asked, answer)
    tab.go("limits", "Limits and breakers")
    expect(page.get_by_role("table", name="Circuit breakers")).to_contain_text("late.9")
    expect(page.locator("main")).to_contain_text("the first 10; there are more")
    tab.go("", "Overview")
    expect(page.locator(".findings")).to_contain_text("The breaker of late.9")
    expect(page.locator(".findings")).to_contain_text("There are more breakers than the first 10")
    tab.go("dlq", "Dead letters")
    expect(page.locator("main")).to_contain_text("the 50 largest")
    tab.go("audit", "Audit")
    expect(page.locator("main")).to_contain_text("The newest 500 of 600 are shown")
    # What comes late is none of the next page's business.
    tab.button("Go on").click()
    tab.go("queues", "Queues")
    expect(page.locator("[aria-busy]")).to_have_count(0)
    with page.expect_response(lists[-1][0]):
        held.pop().fulfill(json={"entries": [], "cursor": "11"})
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    if "iterable" in page.locator(".toasts").inner_text():
        tab.wrong.append("further entries of the audit are put into another page's data")
    for asked, _ in lists:
        page.unroute(asked)

    tab.go("settings", "Settings")
    expect(page.locator("tr", has_text="rate_limit.rate")).to_contain_text(".toml:")
    expect(page.locator(".card", has_text="What the nodes find")).to_contain_text("nothing wrong")
    doctor = page.locator(".card", has_text="What the doctor finds")
    expect(doctor.locator("li", has_text="permissions")).to_contain_text("everything")
    expect(doctor.get_by_role("button", name="Look again")).to_be_enabled()
    page.get_by_label("Name has").fill("webhooks.allow")
    page.keyboard.press("Enter")
    allowed = page.get_by_role("region", name="Settings of webhooks")
    expect(allowed.locator("tbody tr")).to_have_count(1)
    expect(allowed).to_contain_text("127.0.0.1/32")
    expect(page.get_by_role("region", name="Settings of")).to_have_count(1)
    tab.judge("settings")
    tab.go("events", "Events")
    expect(page.locator("main")).to_contain_text("Waiting")
    ask(address, "v1/jobs", {"type": "echo", "run_id": "seen-live"})
    expect(page.locator("tbody")).to_contain_text("completed")
    tab.judge("events")
    page.keyboard.press("p")
    expect(page.locator(".live")).to_have_text("Paused")
    page.keyboard.press("p")
    expect(page.locator(".live")).to_have_text("Live")

    late = Dashboard(browser, address)
    answered_late(late)
    narrow = Dashboard(browser, address, viewport={"width": 360, "height": 844})
    for route, heading in (("", "Overview"), ("queues", "Queues"), ("runs", "Runs"), ("dlq", "Dead letters"), (f"run/default/{dead}", dead), ("schedules", "Schedules"),
                           ("limits", "Limits"), ("nodes", "Nodes"), ("settings", "Settings"), ("audit", "Audit"), ("keys", "Keys"), ("faults", "Faults"), ("webhooks", "Webhooks"), ("events", "Events"), ("submit", "Submit")):
        narrow.go(route, heading)
        expect(narrow.page.locator("[aria-busy]")).to_have_count(0)
        narrow.judge(f"{heading} at 360 px")
        narrow.has_room_for_its_menu(heading)
    narrow.page.get_by_role("button", name="Menu").click()
    narrow.page.get_by_role("link", name="Queues").click()
    expect(narrow.page.locator("main h1")).to_contain_text("Queues")
    return tab.close() + late.close() + narrow.close()


def login(browser, address, operator, reader, card):
    """With keys, under a base path: nothing without one, what the key may with it."""
    tab = Dashboard(browser, address, viewport={"width": 1280, "height": 860})
    tab.allowed += ["status of 401"]
    page = tab.page
    page.goto(address + "#/runs")
    # Exactly: the search field of the page behind is "… id or key".
    key = page.get_by_label("Key", exact=True)
    expect(key).to_be_visible()
    tab.judge("login")
    key.fill("ls_0123456789abcdef_wrong")
    page.keyboard.press("Enter")
    expect(page.locator(".error")).to_contain_text("does not count")
    key.fill(operator)
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_contain_text("Runs")
    expect(page.locator(".environment")).to_have_text("staging")
    if "staging" not in page.title():
        tab.wrong.append(f"the title is {page.title()}")
    tab.go("queues", "Queues")
    expect(tab.button("Purge").first).to_be_visible()
    page.reload()
    expect(page.locator("main h1")).to_contain_text("Queues")
    tab.go("", "Overview")
    expect(page.locator("main")).to_contain_text("the curves are those of one node in the last hour", timeout=60_000)
    page.reload()
    expect(page.locator("main")).to_contain_text("the curves are those of one node in the last hour")
    tab.go("run/acme/" + card, card)
    expect(page.locator("main")).to_contain_text("Hidden, as this type is redacted")
    expect(page.locator("main")).not_to_contain_text("4111")
    revealed = []
    page.on("request", lambda request: revealed.append(request.url) if "reveal=true" in request.url else None)
    tab.button("Reveal").first.click()
    expect(page.locator("main")).to_contain_text("4111-1111")
    # It stays without another such request, each of which the audit has.
    for _ in range(2):
        with page.expect_response(re.compile(f"/v1/runs/{card}/why")):
            page.evaluate("dispatchEvent(new Event('reload')) && undefined")
        expect(page.locator("main")).to_contain_text("4111-1111")
    if len(revealed) != 1:
        tab.wrong.append(f"one click on Reveal asked for {revealed}")
    tab.go("queues", "Queues")
    page.get_by_role("button", name=re.compile("^Reason")).click()
    page.locator("dialog [name=reason]").fill("the former one's")
    tab.confirm("Keep it")
    expect(page.locator(".because")).to_contain_text("the former one's")
    said = []
    page.on("request", lambda request: said.append(request.method) if request.url.endswith("v1/session") else None)
    held = []

    def hold(route):
        if route.request.method != "DELETE":
            return route.continue_()
        # The browser says this of itself, and route.fetch leaves it out.
        held.append((route, route.fetch(headers={**route.request.headers, "sec-fetch-site": "same-origin"})))

    page.route("**/v1/session", hold)
    page.get_by_role("button", name=re.compile("Log out")).click()
    # The session is gone, which another request says first; the answer that takes its cookie away comes late.
    expect(key).to_be_visible()
    if page.evaluate("document.cookie + JSON.stringify(localStorage)").count("ls_"):
        tab.wrong.append("the key is kept where scripts read it")

    # The next one sees nothing of the former one, also before its own list is there.
    lists, unanswered = re.compile(r"/v1/queues\?"), []
    page.route(lists, lambda route: unanswered.append(route))
    key.fill(reader)
    page.keyboard.press("Enter")
    expect(page.locator("form button, main h1").filter(has_text=re.compile("Opening|Queues"))).to_be_visible()
    if said != ["DELETE"]:
        tab.wrong.append(f"asked for the session before the old one's end was known: {said}")
    for route, answer in held:
        route.fulfill(response=answer)
    expect(page.locator("main h1")).to_contain_text("Queues")
    expect(page.locator("main [aria-busy]")).to_be_visible()
    expect(page.locator(".because")).to_have_count(0)
    page.unroute(lists)
    for route in unanswered:
        route.continue_()
    expect(page.locator("main tbody tr").first).to_be_visible()
    expect(page.locator(".tenant-name")).to_have_text("acme")
    for route, heading in (("queues", "Queues"), ("runs", "Runs"), ("dlq", "Dead letters"), ("", "Overview")):
        tab.go(route, heading)
        expect(page.locator("[aria-busy]")).to_have_count(0)
        expect(page.locator(".failure")).to_have_count(0)
        expect(page.locator("main").get_by_role("button", name=re.compile("Pause|Purge|Cancel|Replay|Discard|Resume"))).to_have_count(0)
    tab.go("run/acme/" + card, card)
    expect(page.locator("main")).to_contain_text("Your key lacks the scope reveal")
    expect(page.locator("main")).not_to_contain_text("4111")
    page.unroute("**/v1/session")
    other = Dashboard(browser, address, beside=tab)
    tab.allowed.append("status of 403")
    other.allowed = tab.allowed
    logged_in_elsewhere(tab, other, operator, reader)
    return tab.close() + other.wrong


def logged_in_elsewhere(tab, other, operator, reader):
    """What the former one read and wrote goes from a tab when another one changes the login."""
    def log_in(of):
        of.get_by_role("button", name=re.compile("Log out")).click()
        of.get_by_label("Key", exact=True).fill(operator)
        of.keyboard.press("Enter")
        expect(of.locator("main h1")).to_be_visible()

    page, main = tab.page, tab.page.locator("main")
    other.go("queues", "Queues")
    log_in(page)
    expect(other.page.get_by_role("button", name=re.compile("^Reason"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^Reason")).click()
    page.locator("dialog [name=reason]").fill("the former one's")
    tab.confirm("Keep it")
    tab.button("Reveal").first.click()
    expect(main).to_contain_text("4111-1111")
    page.locator("#search").fill("the former one's")

    # Also if the next one's key may the same and has the same name.
    log_in(other.page)
    expect(main).to_contain_text("Hidden, as this type is redacted")
    expect(main).not_to_contain_text("4111")
    expect(page.locator(".because")).to_have_count(0)
    expect(page.locator("#search")).to_have_value("")
    page.get_by_role("link", name="Queues").click()
    tab.button("Pause").first.click()
    with page.expect_request(re.compile("/pause")) as asked:
        tab.confirm("Pause")
    if reason := asked.value.headers.get("longshore-reason"):
        tab.wrong.append(f"the next one's act has the reason {reason}")
    expect(tab.button("Resume").first).to_be_visible()

    # A page at another port has the same cookie: this one sees it once it is looked at.
    tab.context.request.post(f"{tab.address}v1/session", data={"key": reader})
    page.evaluate("document.dispatchEvent(new Event('visibilitychange')) && undefined")
    expect(page.locator(".tenant-name")).to_have_text("acme")
    expect(tab.button("Resume")).to_have_count(0)


def failover(browser, address, other, pid):
    """Two tabs behind a balancer; the node that answers both is killed, and both go on with the other one."""
    before = balancer([address, other])
    first = Dashboard(browser, before, viewport={"width": 1280, "height": 860})
    second = Dashboard(browser, before, beside=first)
    for tab in (first, second):
        tab.allowed.append("net::ERR_(INCOMPLETE_CHUNKED_ENCODING|EMPTY_RESPONSE|CONNECTION_RESET|SOCKET_NOT_CONNECTED)")
    first.go("events?event=completed", "Events")
    expect(first.page.locator("main")).to_contain_text("Nothing has happened yet")
    second.go("queues", "Queues")
    mail = second.page.locator("tr", has=second.page.get_by_role("link", name="mail", exact=True))
    expect(second.button("Pause", mail)).to_be_visible()

    # What one tab does, the other one shows by itself.
    third = Dashboard(browser, before, beside=first)
    third.allowed = first.allowed
    third.go("queues", "Queues")
    third.button("Pause", third.page.locator("tr", has=third.page.get_by_role("link", name="mail", exact=True))).click()
    third.confirm("Pause")
    expect(mail).to_contain_text("paused")
    third.page.close()

    runs = [ask(other, "v1/jobs", {"type": "echo", "run_id": f"before-{n}"})["run_id"] for n in range(5)]
    expect(first.page.locator("tbody tr")).to_have_count(5)
    os.kill(int(pid), signal.SIGKILL)
    runs += [ask(other, "v1/jobs", {"type": "echo", "run_id": f"after-{n}"})["run_id"] for n in range(20)]
    expect(first.page.locator("tbody tr")).to_have_count(25)
    for run in runs:
        expect(first.page.locator(f"tbody a[title='{run}']")).to_have_count(1)
    expect(first.page.locator(".live")).to_have_text("Live")
    second.button("Resume", mail).click()
    second.toast("mail is resumed")
    expect(second.button("Pause", mail)).to_be_visible()
    expect(second.page.locator(".live")).to_have_text("Live")
    return first.wrong + second.wrong + third.wrong


SCENES = {"work": work, "login": login, "failover": failover}


def main():
    scene, address, *arguments = sys.argv[1:]
    browser = os.environ.get("LONGSHORE_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("no Chromium is here")
        sys.exit(77)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        wrong = SCENES[scene](chromium, address, *arguments)
    for what in wrong:
        print(what)
    sys.exit(1 if wrong else 0)


main()
