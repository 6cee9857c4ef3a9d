"""`rawlog browse`: a local web page to walk files, records and bytes."""

from __future__ import annotations

import click

from rawlog.cli import options, output


@click.command(
    epilog=options.examples(
        "rawlog browse /var/kafka-logs",
        "rawlog browse disk1/ disk2/ --port 8700 --open",
        more="Through SSH: `ssh -L 8700:127.0.0.1:8700 broker1 rawlog browse /var/kafka-logs --port 8700`, then open the address here.",
    )
)
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="PATH...")
@click.option("--as", "as_format", metavar="FORMAT", help="Read every file as this format, whatever it looks like.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port of the server.  [default: a free one]"
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to serve at. With one that others reach, whoever knows the token reads all files at the PATHs.",
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in the browser of this machine.")
@options.json_flag
def command(
    paths: tuple[str, ...], as_format: str | None, port: int, host: str, is_opened: bool, as_json: bool
) -> None:
    """Serve a web page on this machine to walk the directories, partitions, batches, records and bytes at the PATHs.

    Search by offset, time, key, text, id or SQL; see findings in their place; export what was found. Nothing is changed, and only
    files at the PATHs are shown. The address has a token: without it nothing is answered. Ctrl-C ends the server.
    """
    from rawlog.pages.browser.server import is_loopback
    from rawlog.verbs import functions

    with functions.browse(paths, format=as_format, host=host, port=port) as server:
        if as_json:
            output.json_line({"url": server.url, "host": server.host, "port": server.port})
        else:
            output.line(f"Browse at {server.url}")
            output.line("Press Ctrl-C to end.")
        output.flush()
        if not is_loopback(host):
            click.echo(
                f"rawlog: warning: {host} can be reached from other machines, and what is sent is not encrypted",
                err=True,
            )
        if is_opened:
            import webbrowser

            webbrowser.open(server.url)
        server.wait()
