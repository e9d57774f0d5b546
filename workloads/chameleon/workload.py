"""A large XHTML table through the Chameleon template engine."""

import time
import zlib

from chameleon import PageTemplate
from contract import number

NAME, VERSION = "chameleon", 1
TEMPLATE = """\
<table xmlns="http://www.w3.org/1999/xhtml" xmlns:tal="http://xml.zope.org/namespaces/tal">
<tr tal:repeat="row python: rows">
<td tal:repeat="column python: row">
<span tal:define="kind python: 'even' if column % 2 == 0 else 'odd'"
 tal:attributes="class string:column ${kind}" tal:content="python: column" />
</td>
</tr>
</table>
"""


def run(params, ctx):
    rows, columns = number(params, "num_of_rows"), number(params, "num_of_cols")
    start = time.perf_counter()
    template = PageTemplate(TEMPLATE)
    table = [list(range(columns)) for _ in range(rows)]
    page = template.render(rows=table)
    latency = time.perf_counter() - start
    return {
        "latency": latency,
        "num_of_rows": rows,
        "num_of_cols": columns,
        "check": {"length": len(page), "crc": zlib.crc32(page.encode())},
    }
